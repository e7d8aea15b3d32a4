// Package shoptest tests the examples for NATS and Kafka.
package shoptest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
)

// Play runs an example, and returns its books and its exit status.
func Play(t *testing.T, e shop.Example, args ...string) (b shop.Books, status int) {
	t.Helper()
	e.Books = func(closed shop.Books) { b = closed }
	var stdout, stderr bytes.Buffer
	status = e.Main(t.Context(), args, &stdout, &stderr)
	restarted := strings.Contains(stderr.String(), "the next one starts")
	if b.Orders == 0 || !strings.Contains(stdout.String(), "LOST ORDERS") || !restarted {
		t.Fatalf("status %d, no books, or nothing is said about the restart:\n%s%s", status, &stdout, &stderr)
	}
	return b, status
}

// BooksBalance runs an example embedded, with three seeds.
func BooksBalance(t *testing.T, e shop.Example) {
	orders := 100
	if os.Getenv("ONCEMILL_PROOF") == "1" {
		orders = 2000
	}
	for seed := range 3 {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			e.Seed = uint64(seed)
			b, status := Play(t, e, "-embedded", "-orders", strconv.Itoa(orders))
			if status != 0 || !b.Balance() {
				t.Errorf("status %d, %+v; want 0 and balanced books", status, b)
			}
			if b.Orders != orders || b.Copies == 0 || b.Retries == 0 || b.Suppressed == 0 || b.DeadLetters == 0 {
				t.Errorf("%+v; want everything to have happened", b)
			}
		})
	}
}

// BrokenGuardShows runs an example embedded with a store that remembers nothing: the books must tell.
func BrokenGuardShows(t *testing.T, e shop.Example) {
	e.Wrap = func(s dedupstore.Store) dedupstore.Store { return forgetful{s} }
	b, status := Play(t, e, "-embedded", "-orders", "60")
	if status != 1 || b.Balance() || b.DoubleCharges == 0 {
		t.Errorf("status %d, %+v; want 1 and double charges", status, b)
	}
}

// forgetful is a store for which every claim is the first.
type forgetful struct{ dedupstore.Store }

func (f forgetful) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	id := r.Key.ID
	r.Key.ID = producer.NewID()
	a, err := f.Store.Claim(ctx, r)
	a.Claim.Key.ID = id
	return a, err
}

func (f forgetful) Extend(context.Context, dedupstore.Claim, time.Duration) error { return nil }

func (f forgetful) Settle(context.Context, dedupstore.Claim, dedupstore.Settlement) error { return nil }

// MistakesAreNamed gives wrong flags to an example, and addresses where nothing listens, as that of a broker.
func MistakesAreNamed(t *testing.T, e shop.Example, nowhere string) {
	t.Helper()
	broker := "-" + e.AddressFlag
	for says, args := range map[string][]string{
		"-orders is 0":                {"-orders", "0"},
		"-orders is 1000000":          {"-orders", "1000000"},
		"-redis has no use":           {"-redis", "redis://127.0.0.1:1", "-embedded"},
		broker + " has no use":        {broker, nowhere, "-embedded"},
		"unexpected argument":         {"everything"},
		"invalid value \"abc\"":       {"-orders", "abc"},
		"flag provided but not ":      {"-fast"},
		"-redis redis://127.0.0.1:1 ": {"-redis", "redis://ann:secret@127.0.0.1:1"},
		"-redis (hidden":              {"-redis", "redis://:secret@%zz"},
		broker + " " + nowhere + " ":  {broker, nowhere, "-redis", RedisURL(t)},
	} {
		var stdout, stderr bytes.Buffer
		start := time.Now()
		status, want := e.Main(t.Context(), args, &stdout, &stderr), 2
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

// RedisURL is where a Redis server for tests is.
func RedisURL(t *testing.T) string {
	t.Helper()
	server := redistest.Start(t)
	return cmp.Or(os.Getenv("ONCEMILL_TEST_REDIS"), "redis://"+server.Addr)
}
