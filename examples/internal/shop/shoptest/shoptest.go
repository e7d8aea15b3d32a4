// Package shoptest tests the examples.
package shoptest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer"
)

// Play runs an example, and returns its books and its exit status.
func Play(t *testing.T, e shop.Example, args ...string) (shop.Books, int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := e.Main(t.Context(), append(args, "-out", "json"), &stdout, &stderr)
	var b shop.Books
	if err := json.Unmarshal(stdout.Bytes(), &b); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s%s", err, &stdout, &stderr)
	}
	if !strings.Contains(stderr.String(), "the next one starts") {
		t.Errorf("nothing is said about the restart:\n%s", &stderr)
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
			start := time.Now()
			b, status := Play(t, e, "-embedded", "-orders", strconv.Itoa(orders), "-seed", fmt.Sprint(seed))
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v, want at most 60 s", took)
			}
			if status != 0 || !b.Balance() {
				t.Errorf("status %d, %+v; want 0 and balanced books", status, b)
			}
			if b.Orders != orders || b.Copies == 0 || b.Deliveries < b.Orders+b.Copies/2 || b.Retries == 0 || b.Suppressed == 0 || b.DeadLetters == 0 {
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

// MistakesAreNamed gives wrong flags to an example: flags by what must be said about them.
func MistakesAreNamed(t *testing.T, e shop.Example, mistakes map[string][]string) {
	all := map[string][]string{
		"-orders is 0":              {"-orders", "0"},
		"-orders is 1000000":        {"-orders", "1000000"},
		"-out is \"xml\"":           {"-out", "xml"},
		"-role is \"all\"":          {"-role", "all"},
		"-role producer needs":      {"-role", "producer", "-embedded"},
		"-run is \"A b\"":           {"-run", "A b"},
		"-run has no use without":   {"-run", "again"},
		"-redis is \"localhost":     {"-redis", "localhost:6379"},
		"-redis is not a URL":       {"-redis", "redis://:secret@%zz"},
		"-redis is \"http://u:xxxx": {"-redis", "http://u:secret@h"},
		"-redis has no use":         {"-redis", "redis://127.0.0.1:6379", "-embedded"},
		"unexpected argument":       {"everything"},
		"invalid value \"abc\"":     {"-seed", "abc"},
		"flag provided but not ":    {"-fast"},
		"-ledger: ":                 {"-embedded", "-ledger", "/no/such/directory/ledger"},
	}
	for says, args := range mistakes {
		all[says] = args
	}
	for says, args := range all {
		var stdout, stderr bytes.Buffer
		status := e.Main(t.Context(), args, &stdout, &stderr)
		want := 2
		if says == "-ledger: " { // found out when it is used
			want = 1
		}
		if status != want || !strings.Contains(stderr.String(), says) || strings.Contains(stderr.String(), "secret") || stdout.Len() > 0 {
			t.Errorf("%v: status %d, %q; want %d, and it to say %q", args, status, &stderr, want, says)
		}
	}
}

// NoServerIsSaid runs an example with an address where nothing listens: that of the first flag.
func NoServerIsSaid(t *testing.T, e shop.Example, args ...string) {
	t.Helper()
	start := time.Now()
	var stdout, stderr bytes.Buffer
	status := e.Main(t.Context(), args, &stdout, &stderr)
	says := "the server at " + args[0] + " " + strings.Replace(args[1], "secret", "xxxxx", 1) + " cannot be used"
	if status != 1 || !strings.Contains(stderr.String(), says) || !strings.Contains(stderr.String(), "docker compose") || strings.Contains(stderr.String(), "secret") {
		t.Errorf("status %d, %q", status, &stderr)
	}
	if took := time.Since(start); took > 4*shop.AnswerTime {
		t.Errorf("took %v", took)
	}
}
