package main

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/producer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs the example, and returns its books, its exit status and what it says to people.
func run(t *testing.T, p program, args ...string) (b Books, status int, says string) {
	t.Helper()
	p.closed = func(closed Books) { b = closed }
	var stdout, stderr bytes.Buffer
	status = p.main(t.Context(), args, &stdout, &stderr)
	if b.Orders == 0 || !strings.Contains(stdout.String(), "LOST EVENTS") {
		t.Fatalf("no books\n%s%s", &stdout, &stderr)
	}
	return b, status, stderr.String()
}

// full is a count in a normal run, or in a proof.
func full(normal, proof int) string {
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		return strconv.Itoa(proof)
	}
	return strconv.Itoa(normal)
}

// checkAllHappened checks books of a run in which nothing was broken.
func checkAllHappened(t *testing.T, b Books, status int, says string) {
	t.Helper()
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v; want 0 and balanced books\n%s", status, b, says)
	}
	if b.Requests <= b.Orders || b.RolledBack == 0 || len(b.taken) == b.Orders || b.Copies == 0 || b.Waited == 0 || b.Events == 0 {
		t.Errorf("%+v; want everything to have happened", b)
	}
	if !strings.Contains(says, "the next relay starts") {
		t.Errorf("nothing is said about the second relay:\n%s", says)
	}
}

func TestOutbox_BooksBalance(t *testing.T) {
	t.Parallel()
	b, status, says := run(t, program{}, "-embedded", "-orders", full(60, 5000))
	checkAllHappened(t, b, status, says)
	if !strings.Contains(says, "SQLITE INSTEAD OF POSTGRESQL") {
		t.Errorf("it is not said that SQLite is used:\n%s", says)
	}
}

func TestOutbox_BooksBalanceOnPostgresAndNATSAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	db, servers := postgrestest.Shared(t).NewDatabase(t), natstest.Start(t)
	b, status, says := run(t, program{}, "-postgres", db.DSN(), "-nats", servers.URL(), "-orders", full(100, 2000))
	checkAllHappened(t, b, status, says)
	for name := range servers.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
	checkNoSchema(t, db)
}

func checkNoSchema(t *testing.T, db *postgrestest.Database) {
	t.Helper()
	var schemas int
	if err := db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'oncemill%'`).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("%d schemas are left, %v", schemas, err)
	}
}

func TestOutbox_BrokenVariantsShowInTheBooks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tamper func(*service)
		shows  func(Books) bool
	}{
		"events published before the commit": {publishFirst, func(b Books) bool { return b.Phantoms > 0 }},
		"acknowledged but not sent":          {sendNotAll, func(b Books) bool { return b.Lost > 0 }},
		"events with another content":        {changeContent, func(b Books) bool { return b.Lost > 0 && b.Phantoms > 0 }},
		"answers before the commit":          {confirmAll, func(b Books) bool { return b.Lost > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, status, says := run(t, program{tamper: tc.tamper}, "-embedded", "-orders", "24")
			if status != 1 || b.Balance() || !tc.shows(b) {
				t.Errorf("status %d, %+v; want 1 and books that show it\n%s", status, b, says)
			}
		})
	}
}

// publishFirst is what the outbox is there to replace: a broker and a database are written one after the other.
func publishFirst(s *service) {
	place := s.place
	s.place = func(ctx context.Context, o shop.Order) (bool, error) {
		if err := s.publisher.Publish(ctx, event(s.db.topic, o)); err != nil {
			return false, err
		}
		return place(ctx, o)
	}
}

// confirmAll tells clients that all is well before it is.
func confirmAll(s *service) {
	place := s.place
	s.place = func(ctx context.Context, o shop.Order) (bool, error) {
		_, err := place(ctx, o)
		return err == nil, nil
	}
}

// publishing is a function that publishes.
type publishing func(ctx context.Context, messages ...producer.Message) error

func (p publishing) Publish(ctx context.Context, messages ...producer.Message) error {
	return p(ctx, messages...)
}

func sendNotAll(s *service) {
	pub := s.publisher
	s.publisher = publishing(func(ctx context.Context, messages ...producer.Message) error {
		return pub.Publish(ctx, messages[1:]...)
	})
}

func changeContent(s *service) {
	pub := s.publisher
	s.publisher = publishing(func(ctx context.Context, messages ...producer.Message) error {
		changed := append([]producer.Message(nil), messages...)
		for i, m := range changed {
			o, err := shop.ParseOrder(m.Payload)
			if err != nil {
				return err
			}
			o.Cents++
			changed[i].Payload = o.JSON()
		}
		return pub.Publish(ctx, changed...)
	})
}

func TestOutbox_InterruptedRunStopsAndSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := program{tamper: func(s *service) {
		place := s.place
		s.place = func(ctx context.Context, o shop.Order) (bool, error) {
			if strings.HasSuffix(o.ID, "30") {
				cancel()
			}
			return place(ctx, o)
		}
	}}
	var stdout, stderr bytes.Buffer
	status := p.main(ctx, []string{"-embedded"}, &stdout, &stderr)
	if status != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "stopped after ") {
		t.Errorf("status %d\n%s%s", status, &stdout, &stderr)
	}
}

func TestOutbox_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-orders is 0":              {"-orders", "0"},
		"-orders is 1000000":        {"-orders", "1000000"},
		"-postgres has no use with": {"-postgres", "postgres://h/shop", "-embedded"},
		"-nats has no use with":     {"-nats", "nats://h:4222", "-embedded"},
		"unexpected argument":       {"everything"},
		"invalid value \"abc\"":     {"-orders", "abc"},
		"flag provided but not ":    {"-fast"},
	} {
		var stdout, stderr bytes.Buffer
		status := program{}.main(t.Context(), args, &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "secret") || stdout.Len() > 0 {
			t.Errorf("%v: status %d, %q; want 2, and it to say %q", args, status, &stderr, says)
		}
	}
}

func TestOutbox_UnreachableServersAreNamed(t *testing.T) {
	t.Parallel()
	db := postgrestest.Shared(t).NewDatabase(t)
	for says, args := range map[string][]string{
		"-postgres postgres://127.0.0.1:1 ": {"-postgres", "postgres://ann:secret@127.0.0.1:1/shop"},
		"-postgres postgres://127.0.0.1:2 ": {"-postgres", "postgres://127.0.0.1:2/shop?password=secret"},
		"-postgres (hidden":                 {"-postgres", "postgres://:secret@%zz"},
		"-nats nats://127.0.0.1:1 ":         {"-postgres", db.DSN(), "-nats", "nats://ann:secret@127.0.0.1:1"},
	} {
		start := time.Now()
		var stdout, stderr bytes.Buffer
		status := program{}.main(t.Context(), args, &stdout, &stderr)
		if status != 1 || !strings.Contains(stderr.String(), "the server at "+says) || !strings.Contains(stderr.String(), "docker compose") || strings.Contains(stderr.String(), "secret") {
			t.Errorf("status %d, %q; want 1, and it to say %q", status, &stderr, says)
		}
		if took := time.Since(start); took > 4*shop.AnswerTime {
			t.Errorf("%s: took %v", says, took)
		}
	}
	checkNoSchema(t, db)
}
