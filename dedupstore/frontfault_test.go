package dedupstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

// hang makes the cheap store answer nobody until it is given up.
func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestFront_CheapStoreThatHangsDelaysNoMoreThanItsPatience(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		const patience = 50 * time.Millisecond
		f.cheap.before = hang
		start := time.Now()
		a, _ := f.claim(frontRequest("first"), dedupstore.AcquiredRun)
		if took := time.Since(start); took > patience {
			t.Errorf("the first claim took %v", took)
		}
		if err := f.pays(a.Claim); err != nil {
			t.Error(err)
		}
		var longest, all time.Duration
		for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			began := time.Now()
			a, _ := f.claim(frontRequest(time.Since(start).String()), dedupstore.AcquiredRun)
			took := time.Since(began)
			longest, all = max(longest, took), all+took
			if err := f.pays(a.Claim); err != nil {
				t.Error(err)
			}
		}
		if longest > patience || all > time.Second {
			t.Errorf("claims took up to %v, and %v in ten seconds", longest, all)
		}
		if n := f.cheap.count("claim") + f.cheap.count("settle") + f.cheap.count("extend"); n > 25 {
			t.Errorf("it was asked %d times in ten seconds", n)
		}
		f.cheap.before = nil
		time.Sleep(time.Second)
		f.done("later")
		if _, asked := f.claim(frontRequest("later"), dedupstore.Done); asked != 0 {
			t.Error("it is not used again")
		}
		if s := f.Stats(); s.Failed == 0 || s.Skipped == 0 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestFront_HeartbeatDoesNotWaitForOneAfterTheOther(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		f.truth.before = func(context.Context, string) error { time.Sleep(40 * time.Millisecond); return nil }
		f.cheap.before = func(context.Context, string) error { time.Sleep(30 * time.Millisecond); return nil }
		start := time.Now()
		if err := f.Extend(t.Context(), a.Claim, time.Minute); err != nil || time.Since(start) > 40*time.Millisecond {
			t.Errorf("%v after %v, want nil after the 40 ms of the inbox", err, time.Since(start))
		}
		f.truth.before, f.cheap.before = nil, hang
		start = time.Now()
		if err := f.Extend(t.Context(), a.Claim, time.Minute); err != nil || time.Since(start) > 50*time.Millisecond {
			t.Errorf("%v after %v, want nil after the cheap store's 50 ms at most", err, time.Since(start))
		}
		f.cheap.before = nil
		f.truth.before = func(context.Context, string) error { return errCheap }
		if err := f.Extend(t.Context(), a.Claim, time.Minute); !errors.Is(err, errCheap) {
			t.Errorf("%v, want the inbox's error", err)
		}
	})
}

// A held call asks again as the same owner: a cheap claim that was released would be busy for it for ever.
func TestFront_OwnerThatAsksAgainGetsTheRunWhenTheInboxHasIt(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		holder, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		f.loses()
		waiting := frontRequest("1")
		for range 3 {
			if _, asked := f.claim(waiting, dedupstore.Busy); asked != 1 {
				t.Errorf("the inbox was asked %d times", asked)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err := f.Settle(t.Context(), holder.Claim, dedupstore.Release{}); err != nil {
			t.Fatal(err)
		}
		if a, _ := f.claim(waiting, dedupstore.AcquiredRun); f.pays(a.Claim) != nil {
			t.Error("the run could not be finished")
		}
		f.effects("1", 1)
	})
}

func TestFront_ClaimThatTheInboxDoesNotAnswerIsNotHeldByTheCheapStore(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		f.truth.before = func(context.Context, string) error { return errCheap }
		r := frontRequest("1")
		for range 2 {
			if _, err := f.Claim(t.Context(), r); !errors.Is(err, errCheap) {
				t.Errorf("%v, want the inbox's error", err)
			}
		}
		f.truth.before = nil
		time.Sleep(2 * time.Millisecond)
		f.claim(frontRequest("1"), dedupstore.AcquiredRun)
	})
}

func TestFront_ZombieDoesNotHoldTheKeyInTheCheapStore(t *testing.T) {
	for name, operation := range map[string]func(f *frontRig, c dedupstore.Claim) error{
		"by a heartbeat": func(f *frontRig, c dedupstore.Claim) error { return f.Extend(f.t.Context(), c, c.Lease) },
		"by a settlement": func(f *frontRig, c dedupstore.Claim) error {
			return f.Settle(f.t.Context(), c, dedupstore.Release{Delay: time.Hour})
		},
		"by a transaction": func(f *frontRig, c dedupstore.Claim) error { return f.pays(c) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, f *frontRig) {
				zombie, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
				time.Sleep(zombie.Claim.Lease)
				next, err := f.inbox.Claim(t.Context(), frontRequest("1")) // by a process for which the cheap store was away
				if err != nil || next.Status != dedupstore.AcquiredRun {
					t.Fatal(next, err)
				}
				if err := operation(f, zombie.Claim); !errors.Is(err, dedupstore.ErrClaimLost) {
					t.Errorf("%v, want ErrClaimLost", err)
				}
				if err := f.inbox.Settle(t.Context(), next.Claim, dedupstore.Release{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Millisecond)
				a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
				if err := f.pays(a.Claim); err != nil {
					t.Error(err)
				}
				f.effects("1", 1)
			})
		})
	}
}

func TestFront_EndOfTheCallersContextIsNotTheCheapStoresFault(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		ctx, cancel := context.WithCancel(t.Context())
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		err := f.InTx(ctx, a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
			defer cancel()
			return dedupstore.Finish{Outcome: paid(), Retention: time.Hour}, f.inbox.Write(ctx, "1")
		})
		if err != nil {
			t.Error(err)
		}
		if _, asked := f.claim(frontRequest("1"), dedupstore.Done); asked != 0 {
			t.Error("the cheap store was not told")
		}
		if _, err := f.Claim(ctx, frontRequest("2")); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if s := f.Stats(); s.Failed != 0 {
			t.Errorf("%+v", s)
		}
	})
}

type checked struct {
	dedupstore.Transactor
	report dedupstore.Report
	err    error
}

func (c checked) Check(context.Context) (dedupstore.Report, error)   { return c.report, c.err }
func (c checked) Shard(_ context.Context, key dedupstore.Key) string { return "shard of " + key.ID }

func TestFront_CheckIsTheInboxsAndWarnsOfTheCheapStore(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	inbox := checked{f.inbox, dedupstore.Report{Store: "postgres", Version: "15", Durability: "all", Warnings: []string{"w1"}}, nil}
	cheap := checked{nil, dedupstore.Report{Store: "redis", Version: "7", Durability: "none", Warnings: []string{"w2"}}, nil}
	got, err := dedupstore.Front(cheap, inbox).Check(t.Context())
	if err != nil || got.Store != "postgres behind redis" || got.Version != "15, 7" || got.Durability != "all" || len(got.Warnings) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	cheap.report, cheap.err = dedupstore.Report{}, errCheap
	got, err = dedupstore.Front(cheap, inbox).Check(t.Context())
	if err != nil || got.Store != "postgres" || len(got.Warnings) != 2 {
		t.Errorf("with a cheap store that is down: %+v, %v", got, err)
	}
	inbox.err = errCheap
	if _, err := dedupstore.Front(cheap, inbox).Check(t.Context()); !errors.Is(err, errCheap) {
		t.Errorf("with an inbox that is down: %v", err)
	}
	if got := dedupstore.Front(f.cheap, inbox).Shard(t.Context(), request("1").Key); got != "shard of 1" {
		t.Errorf("shard %q", got)
	}
	required, err := dedupstore.NewFront(cheap, f.inbox, dedupstore.FrontConfig{Required: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := required.Shard(t.Context(), request("1").Key); got != "shard of 1" {
		t.Errorf("shard %q where the cheap store is required, want that of it", got)
	}
	if _, err := required.Check(t.Context()); !errors.Is(err, errCheap) {
		t.Errorf("with a required cheap store that is down: %v", err)
	}
	if got := f.Shard(t.Context(), request("1").Key); got != "" {
		t.Errorf("shard %q of an inbox without", got)
	}
}

func TestNewFront_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	_, err := dedupstore.NewFront(nil, f.inbox, dedupstore.FrontConfig{})
	wantInvalid(t, err, "cheap", "is nil")
	_, err = dedupstore.NewFront(f.cheap, nil, dedupstore.FrontConfig{})
	wantInvalid(t, err, "inbox", "is nil")
	_, err = dedupstore.NewFront(f.cheap, f.inbox, dedupstore.FrontConfig{Patience: -1})
	wantInvalid(t, err, "FrontConfig.Patience", "is -1ns, want at least 1ms")
	for replicas := range 2 { // with one of them that is away, each claim would take as long, and some would have no time left for the inbox
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer rdb.Close()
		cheap, err := redisstore.New(rdb, redisstore.Config{Replicas: replicas})
		if err != nil {
			t.Fatal(err)
		}
		_, err = dedupstore.NewFront(cheap, f.inbox, dedupstore.FrontConfig{})
		if replicas == 0 && err != nil {
			t.Error(err)
		} else if replicas > 0 {
			wantInvalid(t, err, "cheap", "waits up to 1s for replicas, longer than it is worth: give it none to wait for, the inbox grants")
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Front of nothing did not panic")
		}
	}()
	dedupstore.Front(nil, nil)
}

func TestFront_OneFailureIsTriedAgainAndShutsNothing(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		for _, operation := range []string{"settle", "claim", "settle"} {
			failed := false
			f.cheap.before = func(_ context.Context, o string) error {
				if o == operation && !failed {
					failed = true
					return errCheap
				}
				return nil
			}
			id := fmt.Sprint(f.Stats())
			f.done(id)
			f.claim(frontRequest(id), dedupstore.Done)
			if _, asked := f.claim(frontRequest(id), dedupstore.Done); asked != 0 {
				t.Errorf("after a failed %s the inbox was asked %d times", operation, asked)
			}
		}
		if s := f.Stats(); s.Skipped != 0 || s.Failed != 3 {
			t.Errorf("%+v", s)
		}
	})
}

// A panic in the client of the cheap store, as in a hook, costs no more than any other failure.
func TestFront_CheapStoreThatPanickedIsAskedAgain(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		held, _ := f.claim(frontRequest("held"), dedupstore.AcquiredRun)
		f.cheap.before = func(_ context.Context, operation string) error { panic(operation) }
		for i := range 5 {
			f.claim(frontRequest(fmt.Sprint(i)), dedupstore.AcquiredRun)
			if err := f.Extend(t.Context(), held.Claim, time.Minute); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
		}
		f.cheap.before = nil
		time.Sleep(time.Second)
		f.done("later")
		if _, asked := f.claim(frontRequest("later"), dedupstore.Done); asked != 0 {
			t.Error("it is not used again")
		}
	})
}
