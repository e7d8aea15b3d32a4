package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// What a failed claim says about the store, and what it does not.

// A claim does not end with its caller, so what became of it says something about the store however little the caller waits.
func TestGuard_StoreThatHangsIsNoticedByCallersWhoDoNotWaitForIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(hangs)
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		impatient := func(i int) (oncemill.Result, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if i%2 == 0 {
				time.AfterFunc(500*time.Millisecond, cancel)
			}
			return g.Run(ctx, call(fmt.Sprint(i)), (&counter{}).run)
		}
		for i := range 3 {
			impatient(i)
		}
		start := time.Now()
		if res, err := impatient(3); err != nil || !res.Bypassed || time.Since(start) > 0 {
			t.Errorf("%+v, %v after %v; want it bypassed at once", res, err, time.Since(start))
		}
	})
}

func TestGuard_InvalidCallsSayNothingAboutTheStore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(context.Context, dedupstore.Request) error {
			return &dedupstore.InvalidError{Field: "Request.Lease"}
		})
		g := newGuard(t, store, oncemill.Policy{})
		for range 20 {
			_, err := g.Run(t.Context(), call("m1"), nil)
			as[*dedupstore.InvalidError](t, err)
			time.Sleep(100 * time.Millisecond)
		}
		store.set(nil)
		if _, err := g.Run(t.Context(), call("m2"), (&counter{}).run); err != nil {
			t.Error(err)
		}
	})
}

func TestGuard_FullStoreDoesNotStopKnownKeys(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: 1000})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		if _, err := g.Run(t.Context(), call("known"), h.run); err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			_, err := g.Run(t.Context(), call(fmt.Sprint("new ", i)), h.run)
			if answertest.Want(t, err, oncemill.StatusStoreDown); !errors.Is(err, dedupstore.ErrFull) {
				t.Errorf("new key: %v, want ErrFull", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if res, err := g.Run(t.Context(), call("known"), h.run); err != nil || !res.Duplicate {
			t.Errorf("known key: %+v, %v; want its outcome", res, err)
		}
		h.want(t, 1)
	})
}

func TestGuard_FullStoreThatWasDownIsAskedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{})
		store.set(func(_ context.Context, r dedupstore.Request) error {
			switch r.Key.ID {
			case "new":
				return dedupstore.ErrFull
			case "slow":
				time.Sleep(time.Second)
			}
			return nil
		})
		time.Sleep(time.Second)
		if _, err := g.Run(t.Context(), call("new"), nil); !errors.Is(err, dedupstore.ErrFull) {
			t.Errorf("new key: %v, want ErrFull", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { g.Run(t.Context(), call("slow"), (&counter{}).run) })
		synctest.Wait()
		if _, err := g.Run(t.Context(), call("known"), (&counter{}).run); err != nil {
			t.Errorf("known key: %v, want it asked beside another, not as the next probe", err)
		}
		wg.Wait()
	})
}

func TestGuard_ClaimThatIsNotDurableStopsNoOtherAndOpensNoGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if r.Key.ID == "behind" {
				return fmt.Errorf("replicas: %w", dedupstore.ErrNotDurable)
			}
			return nil
		})
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		var h counter
		for range 50 {
			if _, err := g.Run(t.Context(), call("behind"), h.run); !errors.Is(err, dedupstore.ErrNotDurable) {
				t.Errorf("error is %v, want ErrNotDurable", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		h.want(t, 0)
		if _, err := g.Run(t.Context(), call("other"), h.run); err != nil {
			t.Errorf("another key: %v", err)
		}
	})
}

func TestGuard_BadRecordOfOneKeyDoesNotStopOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if r.Key.ID == "bad" {
				return &dedupstore.RecordError{Key: "bad", Problem: "version 9"}
			}
			return nil
		})
		g := newGuard(t, store, oncemill.Policy{})
		for range 50 {
			_, err := g.Run(t.Context(), call("bad"), nil)
			as[*dedupstore.RecordError](t, err)
			time.Sleep(50 * time.Millisecond)
		}
		var h counter
		if _, err := g.Run(t.Context(), call("good"), h.run); err != nil {
			t.Error(err)
		}
		h.want(t, 1)
	})
}

func TestGuard_ConnectionThatBreaksUnderManyClaimsIsNotAStoreDown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		g := newGuard(t, store, oncemill.Policy{})
		var h counter
		broken := time.Now().Add(time.Millisecond)
		store.set(func(context.Context, dedupstore.Request) error {
			if time.Now().Before(broken) {
				time.Sleep(time.Until(broken))
				return errDown
			}
			return nil
		})
		start := time.Now()
		taken(t, g, 300, &h).Wait()
		if took := time.Since(start); took > 10*time.Millisecond {
			t.Errorf("300 claims that failed together were held for %v, want one quick repetition", took)
		}
	})
}

func TestGuard_ShardThatIsDownDoesNotStopTheOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if strings.HasPrefix(r.Key.ID, "held") {
				return errDown
			}
			return nil
		})
		g := newGuard(t, store, oncemill.Policy{})
		var h, others counter
		wg := taken(t, g, 50, &h)
		for i := range 1000 { // 200 in a second
			if _, err := g.Run(t.Context(), call(fmt.Sprint("other ", i)), others.run); err != nil {
				t.Errorf("call %d to a shard that is up: %v", i, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		h.want(t, 0)
		store.set(nil)
		wg.Wait()
		h.want(t, 50)
	})
}
