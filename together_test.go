package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// together attempts the claimed calls of some IDs in one batch. It returns what has to be attempted alone, and how the
// others ended.
func together(
	t *testing.T, g *oncemill.Guard, tickets []*oncemill.Ticket, fn oncemill.BatchFunc,
) (alone []int, ends []error) {
	t.Helper()
	ends = make([]error, len(tickets))
	var ended sync.WaitGroup
	contexts := make([]context.Context, len(tickets))
	for i := range tickets {
		contexts[i] = t.Context()
	}
	ended.Add(len(tickets))
	alone = g.AttemptTogether(t.Context(), tickets, contexts, fn, func(i int, _ oncemill.Result, err error) {
		ends[i] = err
		ended.Done()
	})
	ended.Add(-len(alone))
	ended.Wait()
	return alone, ends
}

func ticketsOf(t *testing.T, g *oncemill.Guard, ids ...string) (tickets []*oncemill.Ticket) {
	t.Helper()
	for _, id := range ids {
		tickets = append(tickets, claimed(t, g, call(id)))
	}
	return tickets
}

func TestAttemptTogether_EachErrorSteersItsOwnCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		tickets := ticketsOf(t, g, "a", "b", "c")
		alone, ends := together(t, g, tickets, func(ctx context.Context, calls []int) []error {
			runs := oncemill.RunsFromContext(ctx)
			if len(runs) != 3 || runs[1].Key.ID != "b" || runs[1].Attempt != 1 || !slices.Equal(calls, []int{0, 1, 2}) {
				t.Errorf("calls %v with runs %+v", calls, runs)
			}
			return []error{nil, errors.New("again"), nil}
		})
		var retry *oncemill.RetryError
		if len(alone) > 0 || ends[0] != nil || ends[2] != nil || !errors.As(ends[1], &retry) {
			t.Errorf("alone: %v, ended with %v", alone, ends)
		}
	})
}

// A batch that fails as a whole costs no attempt: each call is attempted under the claim that it has.
func TestAttemptTogether_ABatchThatFailsAsAWholeCostsNoAttempt(t *testing.T) {
	for name, fn := range map[string]oncemill.BatchFunc{
		"one error":       func(context.Context, []int) []error { return []error{errors.New("no")} },
		"too many errors": func(context.Context, []int) []error { return make([]error, 3) },
		"a panic":         func(context.Context, []int) []error { panic("no") },
		"no return":       func(context.Context, []int) []error { runtime.Goexit(); return nil },
		"an error that panics": func(context.Context, []int) []error {
			return []error{nil, (*nilError)(nil)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := &batches{Store: newStore(t)}
				g := newGuard(t, store, oncemill.Policy{Lease: 3 * time.Second})
				tickets := ticketsOf(t, g, "a", "b")
				alone, _ := together(t, g, tickets, fn)
				if !slices.Equal(alone, []int{0, 1}) {
					t.Fatalf("%v are to be attempted alone, want both", alone)
				}
				time.Sleep(10 * time.Second) // virtual: their leases are kept alive meanwhile
				for _, ticket := range tickets {
					h := counter{}
					if res, err := attempted(t, ticket, &h); err != nil || res.Attempt != 1 {
						t.Errorf("attempted alone: %+v, %v, want the first attempt", res, err)
					}
				}
				g.Close()
			})
		})
	}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// If the policy parks started runs, the effects of a batch may have happened: it is not repeated.
func TestAttemptTogether_IrreversibleBatchesAreNotRepeated(t *testing.T) {
	boom := errors.New("boom")
	for name, half := range map[string]func() []error{
		"a panic":            func() []error { panic("half of it is done") },
		"one without":        func() []error { return []error{oncemill.NoEffect(boom)} }, // of three
		"two, one without":   func() []error { return []error{boom, oncemill.NoEffect(boom)} },
		"one for good":       func() []error { return []error{oncemill.Permanent(boom)} },
		"one not counted":    func() []error { return []error{oncemill.Uncounted(oncemill.NoEffect(boom))} },
		"more than messages": func() []error { return make([]error, 4) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				g := newGuard(t, newStore(t), oncemill.Irreversible())
				tickets := ticketsOf(t, g, "a", "b", "c")
				alone, ends := together(t, g, tickets, func(context.Context, []int) []error { return half() })
				if len(alone) > 0 || ends[0] != nil || ends[1] != nil || ends[2] != nil {
					t.Errorf("alone: %v, ended with %v, want outcomes", alone, ends)
				}
				for _, id := range []string{"a", "b", "c"} {
					c := call(id)
					res, err := g.Run(t.Context(), c, (&counter{}).run)
					if err != nil || res.Outcome.Kind != dedupstore.Unknown {
						t.Errorf("%s is %+v, %v, want unknown", id, res, err)
					}
				}
			})
		})
	}
}

func TestTicket_JoinsNoBatchAfterTwoRunsThatCrashed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{Lease: 3 * time.Second})
		c := call("killed")
		request := dedupstore.Request{
			Key: c.Key, Owner: "dead-process-0001", Lease: time.Second, Retention: time.Hour, MaxAttempts: 10,
		}
		for n := range 2 {
			request.Owner = fmt.Sprintf("dead-process-000%d", n)
			if _, err := dedupstore.ClaimOne(t.Context(), store, request); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second) // virtual
		}
		if ticket := claimed(t, g, c); ticket.Joins() || !ticket.IsSuspect() {
			t.Error("a run whose last predecessors were killed joins a batch")
		}
		if !claimed(t, g, call("fresh")).Joins() {
			t.Error("a first run joins no batch")
		}
	})
}

// Over an inbox, what was claimed has a transaction of its own: a batch could not take back what one of it did.
func TestTicket_JoinsNoBatchOverAnInbox(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newInbox(t), oncemill.Policy{})
		if claimed(t, g, call("a")).Joins() {
			t.Error("a claim of an inbox joins a batch")
		}
	})
}

// A call whose neighbour's delivery ends is interrupted, and has its attempt given back.
func TestAttemptTogether_ANeighboursEndCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{MaxAttempts: 1})
		tickets := ticketsOf(t, g, "revoked", "neighbour")
		revoked, revoke := context.WithCancel(t.Context())
		ends := make(chan error, 2)
		g.AttemptTogether(t.Context(), tickets, []context.Context{revoked, t.Context()},
			func(ctx context.Context, _ []int) []error {
				revoke()
				<-ctx.Done()
				return []error{ctx.Err(), ctx.Err()}
			}, func(_ int, _ oncemill.Result, err error) { ends <- err })
		for range tickets {
			var retry *oncemill.RetryError
			if err := <-ends; !errors.As(err, &retry) || !retry.Uncounted {
				t.Errorf("ended with %v, want a retry that costs no attempt", err)
			}
		}
	})
}

// The work for a failure, such as publishing its dead letter, does not keep the outcomes beside it from the store. The
// leases of the batch are not extended any more.
func TestAttemptTogether_AFailureHoldsUpNoOutcomeBesideIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		tickets := ticketsOf(t, g, "a", "b", "c", "d")
		contexts := slices.Repeat([]context.Context{t.Context()}, len(tickets))
		var others sync.WaitGroup
		others.Add(3)
		no := oncemill.Permanent(errors.New("no"))
		g.AttemptTogether(t.Context(), tickets, contexts, func(context.Context, []int) []error {
			return []error{no, nil, no, nil}
		}, func(i int, _ oncemill.Result, _ error) {
			if i > 0 {
				others.Done()
			} else {
				others.Wait() // for as long as its publisher takes
			}
		})
		g.Close()
	})
}
