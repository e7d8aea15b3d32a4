package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// A sharded store has parts that fail by themselves: the first word of an ID names one.
type sharded struct{ *outage }

func (sharded) Shard(_ context.Context, key dedupstore.Key) string {
	shard, _, _ := strings.Cut(key.ID, " ")
	return shard
}

func TestGuard_ShardThatIsDownStopsAndBypassesItsOwnKeysOnly(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := sharded{newOutage(t)}
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if strings.HasPrefix(r.Key.ID, "dead") {
				return errDown
			}
			return nil
		})
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		for i := range 100 { // little traffic: long pauses between the answers of the shard that is up
			if res, err := g.Run(t.Context(), call(fmt.Sprint("dead ", i)), (&counter{}).run); err != nil || !res.Bypassed {
				t.Errorf("a key of the dead shard: %+v, %v", res, err)
			}
			time.Sleep(100 * time.Millisecond)
			if i%10 != 0 {
				continue
			}
			var h counter
			for range 2 {
				if res, err := g.Run(t.Context(), call(fmt.Sprint("up ", i)), h.run); err != nil || res.Bypassed {
					t.Errorf("a key of the shard that is up: %+v, %v", res, err)
				}
			}
			h.want(t, 1)
		}
		if asked := len(store.since(time.Time{})); asked > 60 {
			t.Errorf("the store was asked %d times, want the dead shard left alone", asked)
		}
	})
}

func TestGuard_KeyThatAlwaysFailsIsNotAStoreDown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if r.Key.ID == "bad" {
				return errDown
			}
			return nil
		})
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		for i := range 50 {
			for range 5 {
				g.Run(t.Context(), call("bad"), (&counter{}).run)
				time.Sleep(200 * time.Millisecond)
			}
			if res, err := g.Run(t.Context(), call(fmt.Sprint("good ", i)), (&counter{}).run); err != nil || res.Bypassed {
				t.Errorf("another key: %+v, %v", res, err)
			}
		}
	})
}

func TestGuard_LogHandlerMayUseTheGuard(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(refuses)
		var g *oncemill.Guard
		logged := 0
		handler := handlerFunc(func() {
			logged++
			g.Run(t.Context(), call(fmt.Sprint("logged ", logged)), (&counter{}).run)
		})
		g = newGuard(t, store, oncemill.Policy{Logger: slog.New(handler)})
		for i := range 20 {
			g.Run(t.Context(), call(fmt.Sprint(i)), (&counter{}).run)
			time.Sleep(20 * time.Millisecond)
		}
		if logged != 1 {
			t.Errorf("%d lines were logged, want 1", logged)
		}
	})
}

type handlerFunc func()

func (handlerFunc) Enabled(context.Context, slog.Level) bool    { return true }
func (f handlerFunc) Handle(context.Context, slog.Record) error { f(); return nil }
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler        { return f }
func (f handlerFunc) WithGroup(string) slog.Handler             { return f }

// A store that panics is not taken to be down: it has a bug, which must not be hidden behind a pause.
func TestGuard_StoreThatPanicsIsAskedByEveryCall(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(context.Context, dedupstore.Request) error { panic("store") })
		g := newGuard(t, store, oncemill.Policy{})
		for i := range 20 {
			_, err := g.Run(t.Context(), call(fmt.Sprint(i)), (&counter{}).run)
			if failed := answertest.Want(t, err, oncemill.StatusStoreDown); !strings.Contains(failed.Error(), "panicked: store") {
				t.Errorf("error %v", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

func TestGuard_ClaimThatIsNotDurableIsNotAskedForAllTheTime(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(func(context.Context, dedupstore.Request) error { return dedupstore.ErrNotDurable })
		g := newGuard(t, store, oncemill.Policy{})
		taken := call("1")
		taken.MaxWait = 10 * time.Second
		if _, err := g.Run(t.Context(), taken, nil); !errors.Is(err, dedupstore.ErrNotDurable) {
			t.Errorf("error is %v, want ErrNotDurable", err)
		}
		owners := map[string]bool{}
		for _, a := range store.since(time.Time{}) {
			if owners[a.by] {
				t.Error("an owner that was refused asked again: a late copy of its release could meet its run")
			}
			owners[a.by] = true
		}
		if len(owners) > 25 {
			t.Errorf("in 10 s it was asked for %d times", len(owners))
		}
	})
}
