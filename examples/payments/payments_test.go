package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// TestMain is a consumer in processes that the tests start.
func TestMain(m *testing.M) {
	if text, is := os.LookupEnv(childEnv); is {
		os.Exit(child(context.Background(), text, tamper))
	}
	// If a NATS server is stopped while it makes a stream, it leaves the goroutines of its file store behind.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

// tested is the example with a short lease.
var tested = options{Lease: 500 * time.Millisecond, Seed: 1}

// play plays the example, and returns its books, its exit status and what it says to people.
func play(t *testing.T, args ...string) (b Books, status int, says string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = tested.main(t.Context(), args, &stdout, &stderr)
	if err := json.Unmarshal(stdout.Bytes(), &b); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s%s", err, &stdout, &stderr)
	}
	return b, status, stderr.String()
}

// checkAllHappened checks books of a run in which nothing was broken.
func checkAllHappened(t *testing.T, b Books, status int, says string) {
	t.Helper()
	if status != 0 || !b.Balance() {
		t.Errorf("status %d, %+v; want 0 and balanced books\n%s", status, b, says)
	}
	if b.Charged == 0 || b.Declined == 0 || b.Requests <= b.Payments || b.Republished == 0 || b.Kills == 0 ||
		b.Deliveries <= b.Messages ||
		b.Messages <= b.Payments || b.ReceiptMore == 0 || b.Calls <= b.Transfers || b.Redelivered <= b.ReceiptMore {
		t.Errorf("%+v; want everything to have happened", b)
	}
}

func TestPayments_BooksBalanceEmbedded(t *testing.T) {
	t.Parallel()
	start := time.Now()
	b, status, says := play(t, "-embedded", "-payments", "100", "-kills", "4")
	checkAllHappened(t, b, status, says)
	if took := time.Since(start); took > time.Minute {
		t.Errorf("took %v, want at most a minute", took)
	}
	if !strings.Contains(says, "SQLITE INSTEAD OF POSTGRESQL") {
		t.Errorf("it is not said that SQLite is used:\n%s", says)
	}
}

func TestPayments_BooksBalanceOnServersAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	db, broker := postgrestest.Shared(t).NewDatabase(t), natstest.Start(t)
	b, status, says := play(t, "-postgres", db.DSN(), "-nats", broker.URL(), "-payments", "120", "-kills", "4")
	checkAllHappened(t, b, status, says)
	for name := range broker.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
	var schemas int
	err := db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'oncemill%'`).
		Scan(&schemas)
	if err != nil || schemas != 0 {
		t.Errorf("%d schemas are left, %v", schemas, err)
	}
}

func TestPayments_BooksBalanceOnMySQLAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	db, broker := mysqltest.Shared(t).NewDatabase(t), natstest.Start(t)
	b, status, says := play(t, "-mysql", db.URL(), "-nats", broker.URL(), "-payments", "120",
		"-kills", "4", "-batch", "4")
	checkAllHappened(t, b, status, says)
	var left int
	err := db.Open(t).QueryRow(`SELECT count(*) FROM information_schema.schemata WHERE schema_name LIKE 'oncemill%'`).
		Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("%d databases are left, %v", left, err)
	}
}

func TestPayments_BrokenVariantsShowInTheBooks(t *testing.T) {
	t.Parallel()
	db, broker := postgrestest.Shared(t).NewDatabase(t), natstest.Start(t)
	for name, shows := range map[string][]string{
		"forgets":          {`^entry .*: \+`, `^balance .*: \+1`, `^balance .*: -1`},
		"settles_outside":  {`^entry .*: -1`, `^receipt .*: -1`},
		"drops_receipts":   {`^receipt .*: -1`, `^transfer .*: -1`},
		"renames_receipts": {`^receipt .*: \+`, `^transfer .*: \+`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, status, says := play(t, "-postgres", db.DSN(), "-nats", broker.URL(), "-payments", "30", "-kills", "0",
				"-keep", name)
			for _, mistake := range shows {
				if status != 1 || b.Balance() ||
					!slices.ContainsFunc(b.Mistakes, regexp.MustCompile(mistake).MatchString) {
					t.Errorf("status %d, %+v; want 1 and %s\n%s", status, b, mistake, says)
				}
			}
		})
	}
}

// The books of a second run said that they do not balance.
func TestPayments_PlaysInADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	args := []string{"-sqlite", filepath.Join(t.TempDir(), "payments.db"), "-nats", natstest.Start(t).URL(),
		"-payments", "30", "-kills", "0"}
	if b, status, says := play(t, args...); status != 0 || !b.Balance() {
		t.Fatalf("status %d, %+v\n%s", status, b, says)
	}
	var stdout, stderr bytes.Buffer
	status := tested.main(t.Context(), args, &stdout, &stderr)
	if status != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "has payments of another run") {
		t.Errorf("status %d\n%s%s", status, &stdout, &stderr)
	}
}

func TestPayments_InterruptedRunStopsAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		var stdout, stderr bytes.Buffer
		status := tested.main(ctx, []string{"-embedded", "-payments", "5000", "-kills", "1000"}, &stdout, &stderr)
		cancel()
		if status != 1 || stdout.Len() > 0 ||
			!strings.Contains(stderr.String(), "interrupted: the books were not closed") {
			t.Errorf("after %v: status %d\n%s%s", after, status, &stdout, &stderr)
		}
	}
}

// Whenever it is interrupted: the processes that were started by then end.
func TestHire_InterruptedLeavesNoProcess(t *testing.T) {
	t.Parallel()
	o := options{SQLite: filepath.Join(t.TempDir(), "payments.db"), NATS: "nats://127.0.0.1:1"}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if c, err := hire(ctx, o, cancel); c != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v; want %v", c, err, context.Canceled)
	}
}

func TestHire_ConsumerThatEndsIsTold(t *testing.T) {
	t.Parallel()
	o := options{SQLite: filepath.Join(t.TempDir(), "payments.db"), NATS: "nats://127.0.0.1:1"}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	_, err := hire(ctx, o, cancel)
	for _, err := range []error{err, context.Cause(ctx)} {
		if err == nil || !strings.Contains(err.Error(), "the server at -nats nats://127.0.0.1:1 cannot be used") {
			t.Errorf("%v, want to be told what the consumer says", err)
		}
	}
}

// post gives one payment to a service without a relay.
func post(t *testing.T, h http.Handler, body string, want int) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(body)))
	if w.Code != want {
		t.Errorf("%s: status %d, want %d", body, w.Code, want)
	}
}

func TestService_AnswersSayWhatHappened(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"PostgreSQL": {Run: "answers", Postgres: postgrestest.Shared(t).NewDatabase(t).DSN()},
		"SQLite":     {SQLite: filepath.Join(t.TempDir(), "payments.db")},
	} {
		db, err := openDatabase(t.Context(), o, tables...)
		if err != nil {
			t.Fatal(err)
		}
		h := takePayments(db, "taken")
		post(t, h, `{"id":"4711","account":"ann","merchant":"bakery","cents":1200}`, http.StatusCreated)
		for body, want := range map[string]int{
			`{"id":"4712","account":"ann","merchant":"ann","cents":1200}`:     http.StatusBadRequest,
			`{"id":"4712","account":"ann","merchant":"bakery","cents":0}`:     http.StatusBadRequest,
			`{"id":"47 12","account":"ann","merchant":"bakery","cents":1200}`: http.StatusBadRequest,
			`{`: http.StatusBadRequest,
			`{"id":"4711","account":"ann","merchant":"bakery","cents":1200}`: http.StatusOK,
			`{"id":"4711","account":"ann","merchant":"bakery","cents":1201}`: http.StatusConflict,
		} {
			post(t, h, body, want)
		}
		if stats, err := db.Box.Stats(t.Context()); err != nil || stats.Pending != 1 {
			t.Errorf("%s: %d events, %v; want 1", name, stats.Pending, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPayments_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-payments is 0":                {"-payments", "0"},
		"-kills is -1":                  {"-kills", "-1"},
		"-keep is \"A b\"":              {"-keep", "A b"},
		"-postgres has no use with -em": {"-postgres", "postgres://h/shop", "-embedded"},
		"-keep has no use with -em":     {"-keep", "it", "-embedded"},
		"unexpected argument":           {"everything"},
		"invalid value \"abc\"":         {"-kills", "abc"},
		"flag provided but not ":        {"-fast"},
	} {
		var stdout, stderr bytes.Buffer
		status := tested.main(t.Context(), args, &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "secret") ||
			stdout.Len() > 0 {
			t.Errorf("%v: status %d, %q; want 2, and it to say %q", args, status, &stderr, says)
		}
	}
}

func TestPayments_UnreachableServersAreNamed(t *testing.T) {
	t.Parallel()
	db := postgrestest.Shared(t).NewDatabase(t)
	for says, args := range map[string][]string{
		"-postgres postgres://127.0.0.1:1": {"-postgres", "postgres://ann:secret@127.0.0.1:1/shop"},
		"-nats nats://127.0.0.1:1":         {"-postgres", db.DSN(), "-nats", "nats://ann:secret@127.0.0.1:1"},
	} {
		start := time.Now()
		var stdout, stderr bytes.Buffer
		status := tested.main(t.Context(), args, &stdout, &stderr)
		says := "the server at " + says + " cannot be used"
		if status != 1 || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "secret") {
			t.Errorf("status %d, %q; want 1, and it to say %q", status, &stderr, says)
		}
		if took := time.Since(start); took > 4*shop.AnswerTime {
			t.Errorf("%s: took %v", says, took)
		}
	}
}

func TestPlan_SeedDrawsTheSamePayments(t *testing.T) {
	t.Parallel()
	first, again := plan(options{Payments: 50, Seed: 1}), plan(options{Payments: 50, Seed: 1})
	other := plan(options{Payments: 50, Seed: 2})
	same := true
	for i := range first {
		if first[i] != again[i] {
			t.Errorf("payment %d is %+v, and then %+v", i, first[i], again[i])
		}
		same = same && first[i].Cents == other[i].Cents
	}
	if same {
		t.Error("two seeds draw the same amounts")
	}
}

func TestPlan_ThirtyPercentMeetADuplicate(t *testing.T) {
	t.Parallel()
	n := map[luck]int{}
	all := plan(options{Payments: 20_000, Seed: 1})
	for _, p := range all {
		n[p.luck]++
	}
	share := float64(n[doubled]+n[hungUp]+n[repeated]) / float64(len(all))
	if share < .28 || share > .32 {
		t.Errorf("%.2f of the payments have a duplicate, want .3: %v", share, n)
	}
}

// Copies of a program begin together at a deployment.
func TestPostgres_ProcessesThatBeginTogetherMakeTheirTables(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Shared(t).NewDatabase(t).DSN()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			db, err := openDatabase(t.Context(), options{Postgres: dsn, Run: "together"}, tables...)
			if err != nil {
				t.Error(err)
				return
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
