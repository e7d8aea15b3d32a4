package sqlitestore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func TestChange_AnOutcomeKeepsWhatItPublished(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	parked := dedupstore.Finish{Outcome: dedupstore.Outcome{
		Kind: dedupstore.Unknown, Reason: "no answer", Produced: []dedupstore.Produced{{ID: "letter", Topic: "dead"}},
	}, Retention: time.Hour, Published: true}
	if err := dedupstore.SettleOne(t.Context(), s, c, parked); err != nil {
		t.Fatal(err)
	}
	if err := s.Change(t.Context(), look(t, s, "1"), dedupstore.Complete{Outcome: succeeded.Outcome}); err != nil {
		t.Fatal(err)
	}
	seen := look(t, s, "1")
	if o := seen.Outcome; o.Kind != dedupstore.Succeeded || len(o.Produced) != 1 || seen.Decided != c.Fence {
		t.Errorf("the record looks like %+v, want a success that has published its dead letter", seen)
	}
}

// TestChange_WaitsForTheHandler changes the record of a run whose lease ends while it has the write lock.
func TestChange_WaitsForTheHandler(t *testing.T) {
	t.Parallel()
	s, db := newStore(t)
	newLedger(t, db)
	changed := func() error { return nil }
	r := request("1")
	r.Lease = time.Millisecond
	_, err := inTx(t, s, r, func(ctx context.Context) (dedupstore.Settlement, error) {
		seen := look(t, s, "1")
		box := s.Inbox().(dedupstore.Inspector)
		changed = background(func() error { return box.Change(t.Context(), seen, dedupstore.Forget{}) })
		return succeeded, charge(ctx, Tx(ctx), "1")
	})
	var refused *dedupstore.RefusedError
	if changeErr := changed(); err != nil || !errors.As(changeErr, &refused) {
		t.Errorf("the run returned %v, the change of its record %v, want it to be refused", err, changeErr)
	}
	claim(t, s, request("1"), dedupstore.Done)
}

// TestChange_BesideLiveClaims has operators and handlers at the same keys. A message succeeds once, and once more for
// each success that was forgotten.
func TestChange_BesideLiveClaims(t *testing.T) {
	t.Parallel()
	changes := int32(200) // of both operators: there may be nothing left to decide until the other one forgets it
	if proof() {
		changes = 10_000
	}
	s, db := newStore(t, "_synchronous", "OFF")
	newLedger(t, db)
	ids := []string{"0", "1", "2", "3", "4", "5"}
	messages := map[string]*message{}
	for _, id := range ids {
		messages[id] = &message{id: id}
	}
	some := func() *message { return messages[ids[rand.N(len(ids))]] }
	over, end := context.WithCancel(t.Context())
	var operators, handlers sync.WaitGroup
	for range 4 {
		handlers.Go(func() {
			for over.Err() == nil && !t.Failed() {
				some().deliver(t, s)
			}
		})
	}
	var made atomic.Int32
	for _, decides := range []bool{true, false} {
		operators.Go(func() {
			for made.Load() < changes && !t.Failed() {
				if some().change(t, s, decides) {
					made.Add(1)
				}
			}
		})
	}
	operators.Wait()
	end()
	handlers.Wait()
	for _, m := range messages {
		m.settled(t, s)
		if n := charges(t, db, m.id); n != int(m.charged.Load()) {
			t.Errorf("message %s has %d charges in the ledger, and %d that it was told of", m.id, n, m.charged.Load())
		}
	}
}

// A message is what is known of one.
type message struct {
	id                            string
	running                       atomic.Int32 // at once
	succeeded, forgotten, charged atomic.Int32
}

// deliver claims a message, and runs its handler.
func (m *message) deliver(t *testing.T, s *Store) {
	r := request(m.id)
	r.MaxAttempts = 1 << 30
	dies := rand.N(6) == 0
	if dies {
		r.Lease = time.Millisecond
	}
	a, err := dedupstore.ClaimOne(t.Context(), s, r)
	if err != nil {
		t.Error(err)
	}
	switch a.Status {
	case dedupstore.AcquiredPublish:
		err := dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Published{Retention: time.Hour})
		if err != nil && !dies {
			t.Errorf("message %s is published under a live lease: %v", m.id, err)
		}
		return
	case dedupstore.Busy, dedupstore.Done:
		return
	}
	if !dies && m.running.Add(1) != 1 {
		t.Errorf("message %s is run twice at once", m.id)
	}
	outcome := dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card refused"}
	switch rand.N(5) {
	case 0:
		outcome.Kind = dedupstore.Unknown
	case 1, 2:
		outcome = succeeded.Outcome
	}
	finish := dedupstore.Finish{Outcome: outcome, Retention: time.Hour}
	if !dies {
		m.running.Add(-1)
	}
	switch rand.N(4) {
	case 0:
		err = dedupstore.InTxOne(t.Context(), s.Inbox(), a.Claim,
			func(ctx context.Context) (dedupstore.Settlement, error) {
				return succeeded, charge(ctx, Tx(ctx), m.id)
			})
		if outcome = succeeded.Outcome; err == nil {
			m.charged.Add(1)
		}
	case 1:
		finish.Outcome.Produced = []dedupstore.Produced{{ID: "receipt", Topic: "receipts"}}
		if err = dedupstore.SettleOne(t.Context(), s, a.Claim, finish); err == nil && !dies {
			err = dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Published{Retention: time.Hour})
		}
	case 2:
		err = dedupstore.SettleOne(t.Context(), s, a.Claim, finish)
	case 3:
		outcome.Kind = dedupstore.Failed
		err = dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Release{Reason: "database is down"})
	}
	if err == nil && outcome.Kind == dedupstore.Succeeded {
		m.succeeded.Add(1)
	}
	if err != nil && !(dies && errors.Is(err, dedupstore.ErrClaimLost)) {
		t.Errorf("message %s is run under a live lease, and its settlement returned %v", m.id, err)
	}
}

// change makes a random change, and reports whether it was made. One operator decides what is unknown.
func (m *message) change(t *testing.T, s *Store, decides bool) bool {
	seen := look(t, s, m.id)
	if seen.Outcome.Kind == dedupstore.Unknown && !decides {
		return false
	}
	c := []dedupstore.Change{
		dedupstore.Forget{}, dedupstore.Rerun{}, dedupstore.Complete{Outcome: succeeded.Outcome},
	}[rand.N(3)]
	err := s.Change(t.Context(), seen, c)
	var refused *dedupstore.RefusedError
	if err != nil {
		if !errors.As(err, &refused) {
			t.Error(err)
		}
		return false
	}
	switch c.(type) {
	case dedupstore.Complete:
		m.succeeded.Add(1)
	case dedupstore.Forget:
		if seen.Outcome.Kind == dedupstore.Succeeded {
			m.forgotten.Add(1)
		}
	}
	return true
}

// settled wants a message to have its outcome, or to get one.
func (m *message) settled(t *testing.T, s *Store) {
	var a dedupstore.Answer
	eventually(t, "the message is not lost", func() bool {
		r := request(m.id)
		r.MaxAttempts = 1 << 30
		var err error
		if a, err = dedupstore.ClaimOne(t.Context(), s, r); err != nil {
			t.Fatal(err)
		}
		return a.Status != dedupstore.Busy
	})
	done := int32(0)
	if a.Status != dedupstore.AcquiredRun && a.Outcome.Kind == dedupstore.Succeeded {
		done = 1
	}
	if left := m.succeeded.Load() - m.forgotten.Load(); left != done {
		t.Errorf("message %s succeeded %d times, and %d of these were forgotten; a claim is answered %s, %s", m.id,
			m.succeeded.Load(), m.forgotten.Load(), a.Status, a.Outcome.Kind)
	}
}
