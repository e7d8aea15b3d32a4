package oncemill_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// A store without room takes a settlement without what it can do without: a run that is not settled is made again.
func TestGuard_SettlesAFullStoreWithLess(t *testing.T) {
	permanent := oncemill.Permanent(errDown)
	outputs := dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "out", Topic: "t", Payload: []byte("x")}}}
	for name, c := range map[string]struct {
		o         dedupstore.Outcome
		err       error
		refused   func(f dedupstore.Finish) bool // what there is no room for
		published int
		state     dedupstore.State // when it is published
		truncated bool
	}{
		"a result": {
			o:       dedupstore.Outcome{Result: []byte("long")},
			refused: func(f dedupstore.Finish) bool { return len(f.Outcome.Result) > 0 }, truncated: true,
		},
		"outputs": {
			o:         outputs,
			refused:   func(f dedupstore.Finish) bool { return len(f.Outcome.Produced) > 0 && !f.Published },
			published: 1, state: dedupstore.Running,
		},
		"a dead letter": {
			err:       permanent,
			refused:   func(f dedupstore.Finish) bool { return len(f.Outcome.Produced) > 0 && !f.Published },
			published: 1, state: dedupstore.Publishing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				store.settle = func(s dedupstore.Settlement, apply func() error) error {
					if f, finishes := s.(dedupstore.Finish); finishes && c.refused(f) {
						return dedupstore.ErrFull
					}
					return apply()
				}
				g := newGuard(t, store, oncemill.Policy{})
				h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) { return c.o, c.err }}
				one, published := call("m1"), 0
				one.DeadLetter = deadLetter
				one.Publish = func(context.Context, []dedupstore.Produced) error {
					published++
					if state := store.look(t, "m1").State; state != c.state {
						t.Errorf("published while the record is %s, want %s", state, c.state)
					}
					return nil
				}
				for range 2 {
					if _, err := g.Run(t.Context(), one, h.run); err != nil {
						t.Fatal(err)
					}
				}
				h.want(t, 1)
				seen := store.look(t, "m1")
				if seen.State != dedupstore.Finished || seen.Outcome.Truncated != c.truncated || published != c.published {
					t.Errorf("published %d times, the record is %+v", published, seen)
				}
			})
		})
	}
}

func TestGuard_ReleasesAFullStoreWithoutTheReason(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if r, releases := s.(dedupstore.Release); releases && r.Reason != "" {
				return dedupstore.ErrFull
			}
			return apply()
		}
		_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), call("m1"), (&counter{then: failing(errDown)}).run)
		answertest.Want(t, err, oncemill.StatusRetry)
		if seen := store.look(t, "m1"); seen.State != dedupstore.Retryable || seen.Attempts != 1 {
			t.Errorf("the record is %+v", seen)
		}
	})
}

// Outputs that no record holds were published, and their run could not be finished: it runs again, which its caller gets
// to know.
func TestGuard_OutputsThatArePublishedFirstAndNotFinished(t *testing.T) {
	for want, refusal := range map[oncemill.Status]error{
		oncemill.StatusLost: dedupstore.ErrClaimLost, oncemill.StatusUnrecorded: errDown,
	} {
		t.Run(refusal.Error(), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				store.settle = func(dedupstore.Settlement, func() error) error { return refusal }
				g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: 1, Lease: 10 * time.Second})
				var p publisher
				c := call("m1")
				c.Publish = p.publish
				_, err := g.Run(t.Context(), c, (&counter{then: producing("o1")}).run)
				answertest.Want(t, err, want)
				p.want(t, "o1")
			})
		})
	}
}
