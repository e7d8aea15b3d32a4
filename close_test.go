package oncemill_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// slowClaims is a store that takes a while to answer claims.
type slowClaims struct{ dedupstore.Store }

func (s slowClaims) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	time.Sleep(100 * time.Millisecond)
	return s.Store.Claim(ctx, requests)
}

func TestGuard_CloseWaitsForCallsWhoseClaimsAreOnTheirWay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, slowClaims{newStore(t)}, oncemill.Policy{})
		var told atomic.Bool
		g.Start([]context.Context{t.Context()}, []oncemill.Call{call("m1")},
			func(context.Context, int) (dedupstore.Outcome, error) {
				time.Sleep(time.Second)
				return dedupstore.Outcome{}, nil
			}, func(int, oncemill.Result, error) { told.Store(true) })
		synctest.Wait()
		g.Close()
		if !told.Load() {
			t.Error("Close returned before the call had ended")
		}
	})
}

// A settlement that is tried again goes alone, and those of another batch queue up behind it.
func TestGuard_CloseWaitsForSettlementsBehindARetry(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var settled atomic.Int32
		retrying := make(chan struct{})
		store := newStore(t)
		store.settle = func(_ dedupstore.Settlement, apply func() error) error {
			switch settled.Add(1) {
			case 1:
				return errDown
			case 3: // the second of the first batch was 2
				close(retrying)
				time.Sleep(400 * time.Millisecond)
			}
			return apply()
		}
		g := newGuard(t, store, oncemill.Policy{})
		var told atomic.Int32
		batch := func(ids ...string) {
			calls := make([]oncemill.Call, len(ids))
			for i, id := range ids {
				calls[i] = call(id)
			}
			g.StartBatch(t.Context(), calls, slices.Repeat([]context.Context{t.Context()}, len(ids)),
				func(context.Context, []int) []error { return nil },
				func(int, oncemill.Result, error) { told.Add(1) })
		}
		batch("a", "b")
		<-retrying
		batch("c", "d")
		g.Close()
		if got := told.Load(); got != 4 {
			t.Errorf("Close returned when %d of 4 calls had ended", got)
		}
	})
}

// panickyNotes is a store whose client panics where nobody waits.
type panickyNotes struct{ *dedupstore.Memory }

func (panickyNotes) NoteDuplicates(context.Context, []dedupstore.Duplicates) error {
	panic("a hook of the client")
}
func (panickyNotes) NoteScopes(context.Context, []dedupstore.ScopeUse) error {
	panic("a hook of the client")
}

func TestGuard_NotesThatPanicEndNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		g := newGuard(t, panickyNotes{m}, oncemill.Policy{})
		var h counter
		for range 2 {
			if _, err := g.Run(t.Context(), call("m1"), h.run); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute) // virtual
		h.want(t, 1)
	})
}
