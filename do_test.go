package oncemill_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

type refund struct {
	ID     string
	Amount int
}

func TestDo_EveryCallerGetsTheFirstResult(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		runs := 0
		for range 3 {
			got, err := oncemill.Do(t.Context(), g, call("r1"), func(ctx context.Context) (refund, error) {
				runs++
				return refund{ID: oncemill.FromContext(ctx).ID("refund"), Amount: runs}, nil
			})
			if err != nil || got.Amount != 1 || got.ID == "" {
				t.Errorf("%+v, %v; want the first result", got, err)
			}
		}
	})
}

func TestDo_ErrorsSayWhatToDo(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		do := func(id string, err error) error {
			_, got := oncemill.Do(t.Context(), g, call(id), func(context.Context) (int, error) { return 0, err })
			return got
		}
		sentinel := errors.New("no such account")
		err := do("r1", oncemill.Permanent(sentinel))
		if e := answertest.Want(t, err, oncemill.StatusDone); e.Duplicate || !errors.Is(err, sentinel) {
			t.Errorf("first: %+v", e)
		}
		err = do("r1", nil)
		if e := answertest.Want(t, err, oncemill.StatusDone); !e.Duplicate || e.Outcome.Reason != "no such account" {
			t.Errorf("duplicate: %+v", e)
		}
		answertest.Want(t, do("r2", errors.New("timeout")), oncemill.StatusRetry)
		abandonedClaim(t, store, "r3")
		if e := answertest.Want(t, do("r3", nil), oncemill.StatusBusy, oncemill.StatusNotDue); e.Wait != 30*time.Second {
			t.Errorf("busy: %+v, want the lease that remains", e)
		}
	})
}

func TestDo_ResultThatCannotBeGivenAgainIsDoneAllTheSame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		long := strings.Repeat("x", 65<<10)
		for i := range 2 {
			got, err := oncemill.Do(t.Context(), g, call("long"), func(context.Context) (string, error) { return long, nil })
			if i == 0 && (got != long || err != nil) {
				t.Errorf("first: %d bytes, %v", len(got), err)
			}
			if i == 1 {
				wantError(t, err, oncemill.ErrNoResult)
			}
		}
		for i := range 2 {
			got, err := oncemill.Do(t.Context(), g, call("unmarshalable"), func(context.Context) (any, error) { return func() {}, nil })
			if i == 0 && (got == nil || err != nil) {
				t.Errorf("first: %v, %v", got, err)
			}
			if i == 1 {
				wantError(t, err, oncemill.ErrNoResult)
			}
		}
		if _, err := oncemill.Do(t.Context(), g, call("typed"), func(context.Context) (string, error) { return "s", nil }); err != nil {
			t.Fatal(err)
		}
		_, err := oncemill.Do(t.Context(), g, call("typed"), func(context.Context) (int, error) { return 1, nil })
		wantError(t, err, oncemill.ErrNoResult)
	})
}

// broken is a result that is made of nothing.
type broken struct{ card *refund }

func (b broken) MarshalJSON() ([]byte, error) { return []byte(`"` + b.card.ID + `"`), nil }

func TestDo_ResultThatPanicsWhenItIsWrittenIsDoneAllTheSame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.HighValue())
		runs := 0
		for i := range 20 {
			_, err := oncemill.Do(t.Context(), g, call("r1"), func(context.Context) (broken, error) {
				runs++
				return broken{}, nil
			})
			if i == 0 && err != nil {
				t.Errorf("first: %v", err)
			}
			if i > 0 {
				wantError(t, err, oncemill.ErrNoResult)
			}
			time.Sleep(time.Hour)
		}
		if runs != 1 {
			t.Errorf("%d runs, want 1", runs)
		}
	})
}

func TestDo_RefusesADeadLetterThatNobodyWouldPublish(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		c := call("r1")
		c.DeadLetter = deadLetter
		_, err := oncemill.Do(t.Context(), g, c, func(context.Context) (int, error) { return 0, nil })
		as[*dedupstore.InvalidError](t, err)
	})
}

func TestFromContext_PanicsOutsideARun(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	oncemill.FromContext(t.Context())
}

func TestRunID_IsStableAndDiffersByKeyAndName(t *testing.T) {
	t.Parallel()
	a, b := oncemill.Run{Key: key("m1"), Fence: 1}, oncemill.Run{Key: key("m1"), Fence: 2, Attempt: 9}
	if a.ID("x") != b.ID("x") {
		t.Error("ID depends on the run")
	}
	other := oncemill.Run{Key: key("m2")}
	if a.ID("x") == a.ID("y") || a.ID("x") == other.ID("x") {
		t.Error("IDs collide")
	}
	if got, want := a.ID("x"), "fdca20dc-7481-8556-9980-6447b5221ef5"; got != want {
		t.Errorf("ID %s, want %s: a changed derivation makes every replay a new message", got, want)
	}
}

func ExampleNewGuard() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		panic(err)
	}
	fmt.Println(guard.Policy().Window)
	// Output: 168h0m0s
}

func ExampleDo() {
	store, _ := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	guard, _ := oncemill.NewGuard(store, oncemill.HighValue())
	call := oncemill.Call{Key: dedupstore.Key{Tenant: "shop", Group: "support", Handler: "refund", ID: "ticket-17"}}
	for range 2 {
		amount, err := oncemill.Do(context.Background(), guard, call, func(ctx context.Context) (int, error) {
			fmt.Println("refunding")
			return 42, nil
		})
		fmt.Println(amount, err)
	}
	// Output:
	// refunding
	// 42 <nil>
	// 42 <nil>
}

// What docs/operations.md admits of a type that is changed while its results are remembered.
func TestDo_AResultOfAnOlderTypeIsReadAsJSONReadsIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		type before struct{ Amount int }
		type renamed struct{ Cents int }
		type more struct {
			Amount int
			Note   string
		}
		type other struct{ Amount []string }
		g := newGuard(t, newStore(t), oncemill.Policy{})
		if _, err := oncemill.Do(t.Context(), g, call("1"), func(context.Context) (before, error) { return before{500}, nil }); err != nil {
			t.Fatal(err)
		}
		if v, err := oncemill.Do(t.Context(), g, call("1"), func(context.Context) (more, error) { return more{}, nil }); err != nil || v.Amount != 500 {
			t.Errorf("with another member: %+v, %v", v, err)
		}
		if v, err := oncemill.Do(t.Context(), g, call("1"), func(context.Context) (renamed, error) { return renamed{1}, nil }); err != nil || v.Cents != 0 {
			t.Errorf("with a member renamed: %+v, %v", v, err)
		}
		_, err := oncemill.Do(t.Context(), g, call("1"), func(context.Context) (other, error) { return other{}, nil })
		wantError(t, err, oncemill.ErrNoResult) // with a member of another type
	})
}
