package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

type parts = oncemill.Partial[[]string, string]

// till does parts until it may do no more.
func till(limit int, done *[]string, todo []string) func(context.Context) (parts, error) {
	return func(context.Context) (parts, error) {
		n := min(limit, len(todo))
		*done = append(*done, todo[:n]...)
		p := parts{Done: todo[:n], Remains: todo[n:]}
		if !p.Complete() {
			p.Reason = "limit of the day"
		}
		return p, nil
	}
}

func TestPartial_EveryCallerGetsToKnowWhatRemainsAndNothingIsDoneTwice(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.HighValue())
		var done []string
		all := []string{"card", "voucher", "points", "cash", "beer"}
		for range 3 { // whoever begins anew walks through what is known
			next := call("order-1")
			next.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "x"}
			var steps []parts
			for todo := all; ; {
				p, err := oncemill.Do(t.Context(), g, next, till(2, &done, todo))
				if err != nil {
					t.Fatal(err)
				}
				if steps = append(steps, p); p.Complete() {
					break
				}
				next, todo = p.Rest(next), p.Remains
			}
			want := []parts{
				{Done: all[:2], Remains: all[2:], Reason: "limit of the day"},
				{Done: all[2:4], Remains: all[4:], Reason: "limit of the day"},
				{Done: all[4:]},
			}
			for i := range want {
				if i >= len(steps) || !slices.Equal(steps[i].Done, want[i].Done) || !slices.Equal(steps[i].Remains, want[i].Remains) || steps[i].Reason != want[i].Reason {
					t.Fatalf("steps %+v, want %+v", steps, want)
				}
			}
		}
		if !slices.Equal(done, all) {
			t.Errorf("done %v, want %v", done, all)
		}
	})
}

func TestPartial_OneOfAllWhoContinueRuns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.HighValue())
		var done []string
		first := call("order-1")
		p, err := oncemill.Do(t.Context(), g, first, till(1, &done, []string{"card", "voucher"}))
		if err != nil {
			t.Fatal(err)
		}
		var runs atomic.Int32
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				rest := p.Rest(first)
				rest.MaxWait = time.Minute
				got, err := oncemill.Do(t.Context(), g, rest, func(context.Context) (parts, error) {
					runs.Add(1)
					time.Sleep(time.Second)
					return parts{Done: p.Remains}, nil
				})
				if err != nil || !got.Complete() || !slices.Equal(got.Done, []string{"voucher"}) {
					t.Errorf("%+v, %v", got, err)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

// closed is why nothing can be done now, however often it is tried.
type closed struct{}

func (closed) Error() string   { return "closed at night" }
func (closed) Unwrap() error   { return oncemill.NoEffect(errors.New("closed")) }
func (closed) Uncounted() bool { return true }

func TestPartial_RestThatOutlastsTheWindowIsForThoseWhoKeptItsCall(t *testing.T) {
	for name, tc := range map[string]struct {
		keeps bool
		cards int
	}{"the kept call goes on": {true, 1}, "the first call begins anew": {false, 2}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				g := newGuard(t, newStore(t), oncemill.LowValue())
				paid, open := map[string]int{}, false
				next, todo := call("order-1"), []string{"card", "voucher"}
				ask := func() error {
					if !tc.keeps {
						next, todo = call("order-1"), []string{"card", "voucher"}
					}
					for {
						p, err := oncemill.Do(t.Context(), g, next, func(context.Context) (p parts, _ error) {
							for _, part := range todo {
								if part == "voucher" && !open {
									p.Remains = append(p.Remains, part)
									continue
								}
								paid[part]++
								p.Done = append(p.Done, part)
							}
							if len(p.Done) == 0 {
								return p, oncemill.RetryAfter(30*time.Minute, closed{})
							}
							return p, nil
						})
						if err != nil || p.Complete() {
							return err
						}
						next, todo = p.Rest(next), p.Remains
					}
				}
				for range 30 { // hours: longer than the window, and more than the attempts
					answertest.Want(t, ask(), oncemill.StatusRetry)
					time.Sleep(time.Hour)
				}
				open = true
				if err := ask(); err != nil {
					t.Error(err)
				}
				if paid["card"] != tc.cards || paid["voucher"] != 1 {
					t.Errorf("paid %v, want the card %d times", paid, tc.cards)
				}
			})
		})
	}
}

func TestPartial_RestIsACallOfItsOwnInTheSameScope(t *testing.T) {
	t.Parallel()
	c := call("o1")
	c.Rerun, c.MaxWait, c.Fingerprint = 7, time.Second, dedupstore.Fingerprint{Scheme: "sha256", Sum: "x"}
	rest := parts{}.Rest(c)
	if rest.Rerun != 0 || !rest.Fingerprint.IsZero() || rest.MaxWait != time.Second {
		t.Errorf("%+v", rest)
	}
	want := key("9e79fea8-baa6-813e-a63d-6afe443ac0dd") // for ever: a changed derivation does what remains again
	if rest.Key != want {
		t.Errorf("key %v, want %v", rest.Key, want)
	}
	other := call("o1")
	other.Key.Tenant = "b"
	if id := parts.Rest(parts{}, other).Key.ID; id == rest.Key.ID || parts.Rest(parts{}, rest).Key.ID == rest.Key.ID {
		t.Error("IDs collide")
	}
}

func TestDo_OneOfManyAgentsRunsAndTheOthersLearnHowLong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.HighValue())
		var runs, busy atomic.Int32
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				got, err := oncemill.Do(t.Context(), g, call("ticket-17"), func(context.Context) (int, error) {
					runs.Add(1)
					time.Sleep(12 * time.Second)
					return 42, nil
				})
				if e, ok := answertest.Is(err, oncemill.StatusBusy, oncemill.StatusNotDue); ok {
					busy.Add(1)
					if e.Wait <= 0 || e.Wait > 30*time.Second {
						t.Errorf("wait %v, want what remains of the lease", e.Wait)
					}
				} else if err != nil || got != 42 {
					t.Errorf("%d, %v", got, err)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 || busy.Load() != 49 {
			t.Errorf("%d runs, %d busy", runs.Load(), busy.Load())
		}
	})
}

func TestDo_WhatBecomesOfARunThatDiedIsTheClasssBusiness(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := newStore(t)
		afterDeath := func(id string, p oncemill.Policy) (runs int, err error) {
			c := abandonedClaim(t, s, id, func(r *dedupstore.Request) { r.ParkExpired = p.ExpiredLease == oncemill.Park })
			// It had started.
			if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{
				Claim: c, Lease: c.Lease, Started: true,
			}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(31 * time.Second)
			_, err = oncemill.Do(t.Context(), newGuard(t, s, p), call(id), func(context.Context) (int, error) {
				runs++
				return 0, nil
			})
			return runs, err
		}
		for name, p := range map[string]oncemill.Policy{"low": oncemill.LowValue(), "high": oncemill.HighValue()} {
			if runs, err := afterDeath(name, p); runs != 1 || err != nil {
				t.Errorf("%s: %d runs, %v; want another run", name, runs, err)
			}
		}
		runs, err := afterDeath("irreversible", oncemill.Irreversible())
		if e := answertest.Want(t, err, oncemill.StatusDone); runs != 0 || e.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("irreversible: %d runs, %+v; want none, and an unknown outcome", runs, e)
		}
	})
}

func ExamplePartial() {
	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	guard, _ := oncemill.NewGuard(store, oncemill.HighValue())
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "shop", Group: "support", Handler: "refund", ID: "ticket-17"}}
	first := oncemill.Run{Key: call.Key} // names the parts, also in the rest

	voucherService := false
	refund := func(todo []string) (done oncemill.Partial[[]string, string]) {
		for _, part := range todo {
			if part == "voucher" && !voucherService { // refused: it certainly did not happen
				done.Remains, done.Reason = append(done.Remains, part), "vouchers are closed at night"
				continue
			}
			_ = first.ID(part) // goes with the request to whoever pays
			done.Done = append(done.Done, part)
		}
		return done
	}

	for todo := []string{"card", "voucher"}; ; {
		p, err := oncemill.Do(context.Background(), guard, call, func(context.Context) (oncemill.Partial[[]string, string], error) {
			return refund(todo), nil
		})
		fmt.Println(p.Done, p.Remains, p.Reason, err)
		if err != nil || p.Complete() {
			return
		}
		call, todo = p.Rest(call), p.Remains
		voucherService = true // in the morning
	}
	// Output:
	// [card] [voucher] vouchers are closed at night <nil>
	// [voucher] []  <nil>
}
