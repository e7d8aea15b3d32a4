package claimtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// NoteScope notes that a scope is used, and reads that back.
func NoteScope(ctx context.Context, s dedupstore.ScopeKeeper) error {
	now := time.Now()
	scope := dedupstore.Scope{Tenant: "acme", Group: "scopes", Handler: "charge"}
	err := s.NoteScopes(ctx, []dedupstore.ScopeUse{{Scope: scope, First: now, Last: now}})
	uses, unread := s.Scopes(ctx, scope.Tenant, scope.Group)
	if err = errors.Join(err, unread); err == nil && (len(uses) != 1 || uses[0].Scope != scope) {
		return fmt.Errorf("%v are remembered, want %v", uses, scope)
	}
	return err
}
