package main

import (
	"bytes"
	"cmp"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/billing"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play runs the example, and returns its books and its exit status.
func play(t *testing.T, e billing.Example, args ...string) (b billing.Books, status int) {
	t.Helper()
	e.Books = func(closed billing.Books) { b = closed }
	var stdout, stderr bytes.Buffer
	status = e.Main(t.Context(), args, &stdout, &stderr)
	restarted := strings.Contains(stderr.String(), "the next one starts")
	if b.Orders == 0 || !strings.Contains(stdout.String(), "LOST ORDERS") || !restarted {
		t.Fatalf("status %d, no books, or nothing is said about the restart:\n%s%s", status, &stdout, &stderr)
	}
	return b, status
}

func redisURL(t *testing.T) string {
	t.Helper()
	server := redistest.Start(t)
	return cmp.Or(os.Getenv("ONCEMILL_TEST_REDIS"), "redis://"+server.Addr)
}

func TestNATS_BooksBalance(t *testing.T) {
	orders := "100"
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		orders = "5000"
	}
	b, status := play(t, example, "-embedded", "-orders", orders)
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v; want 0 and balanced books", status, b)
	}
	if b.Copies == 0 || b.Retries == 0 || b.Suppressed < b.Copies || b.DeadLetters == 0 {
		t.Errorf("%+v; want everything to have happened", b)
	}
}

func TestNATS_OnServersLeavesNothingBehind(t *testing.T) {
	servers := natstest.Start(t)
	b, status := play(t, example, "-orders", "60", "-nats", servers.URL(), "-redis", redisURL(t))
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v", status, b)
	}
	for name := range servers.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
}

// A store that remembers nothing: the books must tell.
func TestNATS_BrokenGuardShowsInTheBooks(t *testing.T) {
	e := example
	e.Wrap = func(s dedupstore.Store) dedupstore.Store { return consumertest.Forgetful{Store: s} }
	b, status := play(t, e, "-embedded", "-orders", "60")
	if status != 1 || b.Balance() || b.DoubleCharges == 0 {
		t.Errorf("status %d, %+v; want 1 and double charges", status, b)
	}
}

func TestNATS_MistakesAreNamed(t *testing.T) {
	for says, args := range map[string][]string{
		"-orders is 0":                {"-orders", "0"},
		"-orders is 1000000":          {"-orders", "1000000"},
		"-redis has no use":           {"-redis", "redis://127.0.0.1:1", "-embedded"},
		"-nats has no use":            {"-nats", "nats://127.0.0.1:1", "-embedded"},
		"unexpected argument":         {"everything"},
		"invalid value \"abc\"":       {"-orders", "abc"},
		"flag provided but not ":      {"-fast"},
		"-redis redis://127.0.0.1:1 ": {"-redis", "redis://ann:secret@127.0.0.1:1"},
		"-redis (hidden":              {"-redis", "redis://:secret@%zz"},
		"-nats nats://127.0.0.1:1 ":   {"-nats", "nats://127.0.0.1:1", "-redis", redisURL(t)},
	} {
		var stdout, stderr bytes.Buffer
		start := time.Now()
		status, want := example.Main(t.Context(), args, &stdout, &stderr), 2
		if strings.Contains(stderr.String(), "cannot be used") { // found out when it is used
			want = 1
		}
		said := stderr.String()
		if status != want || !strings.Contains(said, says) || strings.Contains(said, "secret") || stdout.Len() > 0 {
			t.Errorf("%v: status %d, %q; want %d, and it to say %q", args, status, &stderr, want, says)
		}
		if took := time.Since(start); took > 4*shop.AnswerTime {
			t.Errorf("%v: took %v", args, took)
		}
	}
}
