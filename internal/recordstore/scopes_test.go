package recordstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A value is the only one of a store in memory.
type value struct {
	ScopesValue
	groups    ScopesValue
	conflicts int // of the next writes
	writes    int
}

func (v *value) scopes() Scopes {
	return Scopes{
		Package: "teststore",
		Read: func(_ context.Context, tenant, _ string) (ScopesValue, error) {
			if tenant == directory {
				return v.groups, nil
			}
			return v.ScopesValue, nil
		},
		Write: func(_ context.Context, tenant, _ string, data []byte, seen ScopesValue) error {
			if tenant == directory {
				v.groups = ScopesValue{data, 0}
				return nil
			}
			if v.conflicts > 0 || seen.Number != v.Number {
				v.conflicts--
				return ErrConflict
			}
			v.ScopesValue = ScopesValue{data, v.Number + 1}
			v.writes++
			return nil
		},
	}
}

func used(handler string, at time.Time) dedupstore.ScopeUse {
	return dedupstore.ScopeUse{
		Scope: dedupstore.Scope{Tenant: "default", Group: "billing", Handler: handler}, First: at, Last: at,
	}
}

func (v *value) note(t *testing.T, uses ...dedupstore.ScopeUse) (known int) {
	t.Helper()
	if err := v.scopes().NoteScopes(t.Context(), uses); err != nil {
		t.Fatal(err)
	}
	all, err := v.scopes().Scopes(t.Context(), "default", "billing")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestScopes_AreWrittenAgainAfterAConflictAndNotWithoutAChange(t *testing.T) {
	t.Parallel()
	v := &value{conflicts: 3}
	now := time.Now()
	if known := v.note(t, used("charge", now)); known != 1 || v.writes != 1 {
		t.Errorf("%d are known after %d writes, want 1 after 1", known, v.writes)
	}
	if v.note(t, used("charge", now)); v.writes != 1 {
		t.Error("what is known already is written again")
	}
	v.conflicts = 1 << 30
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := v.scopes().NoteScopes(ctx, []dedupstore.ScopeUse{used("refund", now)})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after conflicts without end: %v", err)
	}
}

func TestScopes_AreBoundedAndForgotten(t *testing.T) {
	t.Parallel()
	v := &value{}
	now := time.Now()
	v.note(t, used("old", now.Add(-dedupstore.ScopeRetention-time.Hour)))
	if known := v.note(t, used("charge", now)); known != 1 {
		t.Errorf("%d are known, want the one that was used", known)
	}
	var many []dedupstore.ScopeUse
	for i := range 2 * mostHandlers {
		many = append(many, used(fmt.Sprint("handler-", i), now))
	}
	if known := v.note(t, many...); known != mostHandlers {
		t.Errorf("%d are known, want %d", known, mostHandlers)
	}
}
