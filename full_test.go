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

				res, err := g.Run(t.Context(), call("m2"), (&counter{then: producing("o2")}).run)
				if err != nil || res.Publication == nil {
					t.Fatalf("%+v, %v, want its publication", res, err)
				}
				answertest.Want(t, res.Publication.Done(), want)
			})
		})
	}
}

// A publish step whose lease is lost, or cannot be renewed any more, publishes nothing.
func TestGuard_PublishesNothingWithoutALease(t *testing.T) {
	for name, c := range map[string]struct {
		most    int // bytes of outputs in a record
		refusal error
		want    oncemill.Status
	}{
		"stored, lost":     {1 << 20, dedupstore.ErrClaimLost, oncemill.StatusLost},
		"stored, away":     {1 << 20, errDown, oncemill.StatusUnpublished},
		"not stored, lost": {1, dedupstore.ErrClaimLost, oncemill.StatusLost},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				began := time.Now()
				store.settle = func(_ dedupstore.Settlement, apply func() error) error {
					if time.Since(began) < 30*time.Second {
						return errDown
					}
					return apply()
				}
				store.extend = func(func() error) error {
					if time.Since(began) > 14*time.Second {
						return c.refusal
					}
					return errDown
				}
				g := newGuard(t, store, oncemill.Policy{MaxProducedBytes: c.most, Lease: 40 * time.Second})
				var p publisher
				one := call("m1")
				one.Publish = p.publish
				_, err := g.Run(t.Context(), one, func(context.Context) (dedupstore.Outcome, error) {
					time.Sleep(14*time.Second + time.Millisecond) // virtual
					return dedupstore.Outcome{Produced: []dedupstore.Produced{{ID: "o", Topic: "t", Payload: []byte("xx")}}}, nil
				})
				if got := answertest.Want(t, err, c.want); c.want == oncemill.StatusUnpublished && got.Wait != 40*time.Second {
					t.Errorf("due in %v, want its whole lease", got.Wait)
				}
				p.want(t)
			})
		})
	}
}

// A settlement that has nothing to leave out is sent to a full store again.
func TestGuard_SettlesAFullStoreAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		fails := 0
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if fails++; fails%3 != 0 {
				return dedupstore.ErrFull
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{})
		var p publisher
		for id, then := range map[string]func(context.Context, int) (dedupstore.Outcome, error){
			"a success": failing(nil), "a failure": failing(oncemill.Permanent(errDown)),
		} {
			c := call(id)
			c.Publish = p.publish
			if _, err := g.Run(t.Context(), c, (&counter{then: then}).run); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			if seen := store.look(t, id); seen.State != dedupstore.Finished {
				t.Errorf("%s: the record is %+v", id, seen)
			}
		}
		c := call("outputs")
		c.Publish = p.publish
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if _, publishes := s.(dedupstore.Published); !publishes {
				return apply()
			}
			if fails++; fails%3 != 0 {
				return dedupstore.ErrFull
			}
			return apply()
		}
		fails = 0
		if _, err := g.Run(t.Context(), c, (&counter{then: producing("o1")}).run); err != nil {
			t.Error(err)
		}
		if seen := store.look(t, "outputs"); seen.State != dedupstore.Finished {
			t.Errorf("what was published is %+v", seen)
		}
		claimed(t, g, call("given back")).GiveBack(t.Context())
		if seen := store.look(t, "given back"); seen.State != dedupstore.Retryable {
			t.Errorf("what was given back is %+v", seen)
		}
	})
}

// A store may be away first, and full when it is back.
func TestGuard_SettlesAStoreThatIsAwayAndThenFull(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		asked := 0
		store.settle = func(s dedupstore.Settlement, apply func() error) error {
			if asked++; asked == 1 {
				return errDown
			}
			if r, releases := s.(dedupstore.Release); releases && r.Reason != "" {
				return dedupstore.ErrFull
			}
			return apply()
		}
		_, err := newGuard(t, store, oncemill.Policy{}).Run(t.Context(), call("m1"), (&counter{then: failing(errDown)}).run)
		answertest.Want(t, err, oncemill.StatusRetry)
		if seen := store.look(t, "m1"); seen.State != dedupstore.Retryable {
			t.Errorf("the record is %+v", seen)
		}
	})
}
