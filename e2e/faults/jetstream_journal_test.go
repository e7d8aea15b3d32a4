package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// A journal is the ledger of a process that may be killed at any moment. Whenever something happens to a run, the
// journal appends the run to a file, in its new state. A killed process did only what it wrote: the effect is the line
// itself.
type journal struct {
	*ledger
	file *os.File

	// Guarded by the ledger's lock.
	marks map[dedupstore.Key]map[uint64]mark // by fence
	wrong error                              // the first that a write got
}

// A mark is what a ledger does not know about a run.
type mark struct {
	failed    bool // after its effect
	released  bool
	delivered uint64 // which delivery of the message it was, as the server counts
}

// released is an end that a ledger does not note: the run may be tried again.
const released end = "released"

// An entry is a line of a journal: a run so far.
type entry struct {
	PID     int
	ID      string
	Fence   uint64
	Attempt int
	Found   dedupstore.State
	Granted time.Time
	Until   time.Time // before this the lease cannot have ended
	Effect  time.Time `json:",omitzero"`
	Failed  bool      `json:",omitzero"` // after its effect
	End     end       `json:",omitempty"`

	Delivered uint64 `json:",omitzero"` // which delivery of the message it was, as the server counts
}

func newJournal(t *testing.T, store dedupstore.Store, name string) *journal {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	j := &journal{ledger: newLedger(store), file: f, marks: map[dedupstore.Key]map[uint64]mark{}}
	t.Cleanup(func() {
		if err := errors.Join(j.wrong, f.Close()); err != nil {
			t.Error(err)
		}
	})
	return j
}

func (j *journal) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := j.ledger.Claim(ctx, requests)
	for _, r := range results {
		if r.Err == nil && r.Answer.Status == dedupstore.AcquiredRun {
			j.write(r.Answer.Claim.Key, r.Answer.Claim.Fence, mark{})
		}
	}
	return results
}

func (j *journal) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := j.ledger.Extend(ctx, extensions)
	for _, x := range extensions {
		j.write(x.Claim.Key, x.Claim.Fence, mark{})
	}
	return errs
}

func (j *journal) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := j.ledger.Settle(ctx, settlings)
	for i, s := range settlings {
		_, release := s.Settlement.(dedupstore.Release)
		j.write(s.Claim.Key, s.Claim.Fence, mark{released: release && errs[i] == nil})
	}
	return errs
}

// does has the effect of a handler.
func (j *journal) does(r oncemill.Run) {
	j.ledger.does(r)
	j.write(r.Key, r.Fence, mark{})
}

// undoes notes that a handler is about to fail although it had its effect.
func (j *journal) undoes(r oncemill.Run) { j.write(r.Key, r.Fence, mark{failed: true}) }

// receives notes of which delivery the run is.
func (j *journal) receives(r oncemill.Run, msg jetstream.Msg) {
	if meta, err := msg.Metadata(); err == nil {
		j.write(r.Key, r.Fence, mark{delivered: meta.NumDelivered})
	}
}

// write appends what is known about a run, with one more mark.
func (j *journal) write(key dedupstore.Key, fence uint64, add mark) {
	j.look(func() {
		r := j.of(key.ID).run(fence)
		if r == nil {
			return // a publish step
		}
		if j.marks[key] == nil {
			j.marks[key] = map[uint64]mark{}
		}
		m := j.marks[key][fence]
		m = mark{m.failed || add.failed, m.released || add.released, max(m.delivered, add.delivered)}
		j.marks[key][fence] = m
		e := entry{
			PID: os.Getpid(), ID: key.ID, Fence: fence, Attempt: r.Attempt, Found: r.found,
			Granted: r.granted, Until: r.until, Effect: r.effect, Failed: m.failed, End: r.end,
			Delivered: m.delivered,
		}
		if m.released {
			e.End = released
		}
		line, err := json.Marshal(e)
		if err == nil {
			_, err = j.file.Write(append(line, '\n'))
		}
		if err != nil && j.wrong == nil {
			j.wrong = fmt.Errorf("journal: %w", err)
		}
	})
}
