package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/examples/internal/shop/shoptest"
	"github.com/oncemill/oncemill/internal/testserver"
)

// TestMain is the example in processes that the tests start. What is broken in them says the name of the run.
func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		o, _ := parse(os.Args[1:], io.Discard) // main says what is wrong
		os.Exit(program{tamper: breakages[o.run]}.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	// A NATS server that is stopped in the moment in which it makes a stream leaves the goroutines of its file store behind.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}

// play plays the example, and returns its books, its exit status and what it says to people.
func play(t *testing.T, args ...string) (b Books, status int, says string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = program{}.main(t.Context(), append(args, "-lease", "500ms", "-out", "json"), &stdout, &stderr)
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
	if b.Charged == 0 || b.Declined == 0 || b.Repeated == 0 || b.Republished == 0 || b.Kills == 0 || b.Deliveries <= b.Messages ||
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
	db, broker := testserver.SharedPostgres(t).NewDatabase(t), testserver.NATS(t)
	b, status, says := play(t, "-postgres", db.DSN(), "-nats", broker.URL(), "-redis", shoptest.RedisURL(t), "-payments", "120", "-kills", "4")
	checkAllHappened(t, b, status, says)
	for name := range broker.JetStream().StreamNames(t.Context()).Name() {
		t.Errorf("stream %s is left", name)
	}
	var schemas int
	if err := db.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'oncemill%'`).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("%d schemas are left, %v", schemas, err)
	}
}

func TestPayments_BrokenVariantsShowInTheBooks(t *testing.T) {
	t.Parallel()
	db, broker := testserver.SharedPostgres(t).NewDatabase(t), testserver.NATS(t)
	for name, shows := range map[string]func(Books) bool{
		"forgets":          func(b Books) bool { return b.Double > 0 && b.Unbalanced > 0 },
		"settles_outside":  func(b Books) bool { return b.Lost > 0 && b.NoReceipt > 0 },
		"drops_receipts":   func(b Books) bool { return b.NoReceipt > 0 && b.Untold > 0 },
		"renames_receipts": func(b Books) bool { return b.TwoIDs > 0 && b.ToldTwice > 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, status, says := play(t, "-postgres", db.DSN(), "-nats", broker.URL(), "-redis", "", "-payments", "30", "-kills", "0", "-run", name)
			if status != 1 || b.Balance() || !shows(b) {
				t.Errorf("status %d, %+v; want 1 and books that show it\n%s", status, b, says)
			}
		})
	}
}

// The books of a second run said that they do not balance.
func TestPayments_PlaysInADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	args := []string{"-sqlite", filepath.Join(t.TempDir(), "payments.db"), "-nats", testserver.NATS(t).URL(), "-redis", "", "-payments", "30", "-kills", "0"}
	if b, status, says := play(t, args...); status != 0 || !b.Balance() {
		t.Fatalf("status %d, %+v\n%s", status, b, says)
	}
	var stdout, stderr bytes.Buffer
	status := program{}.main(t.Context(), args, &stdout, &stderr)
	if status != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "has payments of another run") {
		t.Errorf("status %d\n%s%s", status, &stdout, &stderr)
	}
}

func TestPayments_InterruptedRunStopsAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{10 * time.Millisecond, 200 * time.Millisecond, 2 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		var stdout, stderr bytes.Buffer
		status := program{}.main(ctx, []string{"-embedded", "-payments", "5000", "-kills", "1000"}, &stdout, &stderr)
		cancel()
		if status != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "interrupted: the books were not closed") {
			t.Errorf("after %v: status %d\n%s%s", after, status, &stdout, &stderr)
		}
	}
}

// Whenever it is interrupted: the processes that were started by then end.
func TestHire_InterruptedLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, err := parse([]string{"-sqlite", filepath.Join(dir, "payments.db"), "-nats", "nats://127.0.0.1:1", "-redis", ""}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.journal = filepath.Join(dir, "journal")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := hire(ctx, o); c != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v; want %v", c, err, context.Canceled)
	}
}

func TestPayments_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"-payments is 0":                {"-payments", "0"},
		"-kills is -1":                  {"-kills", "-1"},
		"-lose is 1":                    {"-lose", "1"},
		"-lease is 10ms":                {"-lease", "10ms"},
		"-out is \"xml\"":               {"-out", "xml"},
		"-run is \"A b\"":               {"-run", "A b"},
		"-role has \"bank\"":            {"-role", "charge,bank"},
		"-role needs servers":           {"-role", "charge", "-embedded"},
		"-role has service and api":     {"-role", "api,service"},
		"-postgres is \"localhost":      {"-postgres", "localhost:5432"},
		"-postgres is \"mysql://u:xxx":  {"-postgres", "mysql://u:secret@h"},
		"-postgres is not a URL":        {"-postgres", "postgres://:secret@%zz"},
		"-postgres has a password":      {"-postgres", "postgres://h/shop?password=secret"},
		"-postgres has no use with -em": {"-postgres", "postgres://h/shop", "-embedded"},
		"-postgres has no use with -sq": {"-postgres", "postgres://h/shop", "-sqlite", "x.db"},
		"-keep has no use with -em":     {"-keep", "-embedded"},
		"-redis has no use with -em":    {"-redis", "redis://h:6379", "-embedded"},
		"-nats is \"http://":            {"-nats", "http://127.0.0.1:4222"},
		"-redis is \"localhost":         {"-redis", "localhost:6379"},
		"-api is \"ftp://":              {"-role", "notify", "-api", "ftp://h"},
		"-listen is \"8080\"":           {"-role", "service", "-listen", "8080"},
		"-listen has no use without":    {"-listen", "127.0.0.1:0"},
		"-payments has no use with":     {"-role", "relay", "-payments", "20"},
		"unexpected argument":           {"everything"},
		"invalid value \"abc\"":         {"-seed", "abc"},
		"flag provided but not ":        {"-fast"},
	} {
		var stdout, stderr bytes.Buffer
		status := program{}.main(t.Context(), args, &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "secret") || stdout.Len() > 0 {
			t.Errorf("%v: status %d, %q; want 2, and it to say %q", args, status, &stderr, says)
		}
	}
}

func TestPayments_UnreachableServersAreNamed(t *testing.T) {
	t.Parallel()
	db := testserver.SharedPostgres(t).NewDatabase(t)
	for says, args := range map[string][]string{
		"-postgres postgres://ann:xxxxx@127.0.0.1:1/shop": {"-postgres", "postgres://ann:secret@127.0.0.1:1/shop", "-redis", ""},
		"-nats nats://ann:xxxxx@127.0.0.1:1":              {"-postgres", db.DSN(), "-redis", "", "-nats", "nats://ann:secret@127.0.0.1:1"},
		"-redis redis://ann:xxxxx@127.0.0.1:1":            {"-postgres", db.DSN(), "-redis", "redis://ann:secret@127.0.0.1:1"},
	} {
		start := time.Now()
		var stdout, stderr bytes.Buffer
		status := program{}.main(t.Context(), args, &stdout, &stderr)
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
	first, again, other := plan(options{payments: 50, seed: 1}), plan(options{payments: 50, seed: 1}), plan(options{payments: 50, seed: 2})
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
	all := plan(options{payments: 20_000, seed: 1})
	for _, p := range all {
		n[p.luck]++
	}
	share := float64(n[missed]+n[doubled]+n[hungUp]+n[repeated]+n[late]) / float64(len(all))
	if share < .28 || share > .32 {
		t.Errorf("%.2f of the payments have a duplicate, want .3: %v", share, n)
	}
}

func TestAPI_TransfersOnceAKeyAndRemembers(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/journal"
	for i, want := range []int{201, 200} { // the second one has been restarted
		a, err := openAPI(file, 0)
		if err != nil {
			t.Fatal(err)
		}
		if status, says := a.transfer("key", "body"); status != want {
			t.Errorf("start %d: %d %s, want %d", i, status, says, want)
		}
		if status, _ := a.transfer("key", "another body"); status != 422 {
			t.Errorf("start %d: %d for a key that is used again, want 422", i, status)
		}
		if err := a.close(); err != nil {
			t.Fatal(err)
		}
	}
	calls, err := readJournal(file)
	if err != nil || len(calls) != 2 || !calls[0].transfer || calls[1].transfer {
		t.Errorf("%s: the journal is %+v, %v", strconv.Itoa(len(calls)), calls, err)
	}
}
