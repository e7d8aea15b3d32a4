// Package filled has stores of every kind, in pairs: one is empty, and one holds many records. The store itself writes
// the first thousand of them, and the rest are copies under other keys.
package filled

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
)

// A Store is one of a pair.
type Store struct {
	dedupstore.Inspector

	// Inbox is nil where there is none. Effect writes a row in the transaction of a run.
	Inbox  dedupstore.Transactor
	Effect func(ctx context.Context, id string) error

	// Clean is nil where the server removes what has expired. Expire makes [Seeds] records for it.
	Clean  func(ctx context.Context, limit int) (int, error)
	Expire func(ctx context.Context) error

	// Next is where the next page of a list begins.
	Next string

	copies int // of each seed
}

// Stores are all, and Inboxes those that have one.
var (
	Stores = append([]kit.Subject[*Store]{{Name: "redis", Open: openRedis}, {Name: "natskv", Open: openNATS}},
		append(Inboxes, kit.Subject[*Store]{Name: "dynamodb", Open: openDynamoDB},
			kit.Subject[*Store]{Name: "cassandra", Open: openCassandra})...)
	Inboxes = []kit.Subject[*Store]{
		{Name: "postgres", Open: openPostgres}, {Name: "mysql", Open: openMySQL}, {Name: "sqlite", Open: openSQLite},
	}
)

// Seeds are how many records the store writes. In an empty one there are no more.
const Seeds = 1000

// finished is how many of the seeds have succeeded: the first ones.
const finished = 850

// What every claim says beside its key, as the defaults of a consumer are.
const (
	lease  = time.Hour // what runs when the records are made runs until the end
	window = 24 * time.Hour
	digest = "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ" // of Payload
	trace  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

// Payload is that of all messages.
const Payload = "hello"

// Request is for a claim of a key.
func Request(key dedupstore.Key) dedupstore.Request {
	return dedupstore.Request{
		Key: key, Owner: rand.Text(), Lease: lease, Retention: window, MaxAttempts: 5, Trace: trace,
		Holder: "billing-7d9f-x2x9k:417", Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: digest},
	}
}

// Fresh is for a claim of a key that nobody has claimed.
func Fresh() dedupstore.Request { return Request(keyOf(rand.Text())) }

// Succeeded is how most runs end.
var Succeeded = dedupstore.Finish{
	Outcome:   dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(`{"receipt":"2026-11-28/000417"}`)},
	Retention: window, Took: 5 * time.Millisecond,
}

func keyOf(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: id}
}

func seedID(n int) string { return fmt.Sprintf("seed%03d", n) }

// Done is the key of any record that has succeeded.
func (s *Store) Done() dedupstore.Key {
	id := seedID(mathrand.IntN(finished))
	if n := mathrand.IntN(s.copies + 1); n > 0 {
		id = copyID(id, n)
	}
	return keyOf(id)
}

// copyID is the ID of a copy. Those that are made together lie side by side, as those of producer.NewID do.
func copyID(id string, n int) string { return fmt.Sprintf("%010d-%s", n, id) }

// seed writes the first records: what a store holds after a day. What has expired is for those that clean.
func (s *Store) seed(ctx context.Context) error {
	requests := make([]dedupstore.Request, Seeds)
	for i := range requests {
		requests[i] = Request(keyOf(seedID(i)))
	}
	var settlings []dedupstore.Settling
	for i, r := range s.Claim(ctx, requests) {
		if r.Err != nil {
			return r.Err
		}
		if settlement := s.settlement(i); settlement != nil {
			settlings = append(settlings, dedupstore.Settling{Claim: r.Answer.Claim, Settlement: settlement})
		}
	}
	return errors.Join(s.Settle(ctx, settlings)...)
}

// settlement is how a seed ends; nil: it runs.
func (s *Store) settlement(seed int) dedupstore.Settlement {
	finish := Succeeded
	switch {
	case seed < finished:
	case seed < 880:
		finish.Outcome = dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "the card was refused"}
	case seed < 900:
		finish.Outcome.Produced = []dedupstore.Produced{
			{ID: "receipt", Topic: "receipts", Key: "customer-417", Payload: make([]byte, 200)},
		}
	case seed < 930:
		return dedupstore.Release{Delay: lease, Reason: "the bank did not answer"}
	case seed < 950:
		return nil
	case s.Clean != nil:
		finish.Retention = time.Millisecond
	}
	return finish
}

// copies are how many copies of each seed a full store has.
func copies(b *kit.Bench) int { return max(b.Records/Seeds-1, 0) }

// copiesAtOnce are how many copies of each seed are made by one call.
const copiesAtOnce = 50

// fill copies all seeds. CopyAll does it once for each number of from to to. It runs several times at once.
func fill(
	ctx context.Context, b *kit.Bench, name string, atOnce, copies int,
	copyAll func(ctx context.Context, from, to int) error,
) error {
	if copies == 0 {
		return nil
	}
	var made atomic.Int64
	begun := time.Now()
	parts := (copies + copiesAtOnce - 1) / copiesAtOnce
	_, _, err := kit.Load{Workers: atOnce, Messages: int64(parts)}.Run(ctx, func(
		ctx context.Context, part int64,
	) (time.Duration, error) {
		from := int(part)*copiesAtOnce + 1
		to := min(from+copiesAtOnce-1, copies)
		if err := copyAll(ctx, from, to); err != nil {
			return 0, err
		}
		n := made.Add(int64(to - from + 1))
		b.Progress("%s: %d records after %.0f s", name, n*Seeds, time.Since(begun).Seconds())
		return 0, nil
	})
	return err
}
