package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

const (
	noteScopesSQL = `
INSERT INTO "{table}_scopes" (scope, first_at, last_at) VALUES (?, ?, ?)
ON CONFLICT (scope) DO UPDATE SET first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at)`

	scopesSQL = `SELECT scope, first_at, last_at FROM "{table}_scopes" WHERE scope >= ? AND scope < ?`
)

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	if err := dedupstore.ValidateScopes(uses); err != nil || len(uses) == 0 {
		return err
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	err := s.write(ctx, s.gate.enterLast, func(ctx context.Context, t *lockedTx) error {
		for _, u := range uses {
			first, last := u.First.UnixMicro(), u.Last.UnixMicro()
			if _, err := t.ExecContext(ctx, s.in(noteScopesSQL), u.Scope.String(), first, last); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqlitestore: note scopes (call Migrate if their table is missing): %w", noRoom(err))
	}
	return nil
}

// Scopes implements [dedupstore.ScopeKeeper]. It does not wait for the write lock.
func (s *Store) Scopes(ctx context.Context, tenant, group string) (uses []dedupstore.ScopeUse, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	failed := func(err error) error {
		return fmt.Errorf("sqlitestore: read scopes (call Migrate if their table is missing): %w", ended(ctx, err))
	}
	from, to := sqlstore.ScopesOf(tenant, group)
	rows, err := s.db.QueryContext(ctx, s.in(scopesSQL), from, to)
	if err != nil {
		return nil, failed(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var first, last int64
		if err := rows.Scan(&name, &first, &last); err != nil {
			return nil, failed(err)
		}
		scope, err := dedupstore.ParseScope(name)
		if err != nil {
			return nil, failed(err)
		}
		uses = append(uses, dedupstore.ScopeUse{
			Scope: scope, First: time.UnixMicro(first), Last: time.UnixMicro(last),
		})
	}
	if err := rows.Err(); err != nil {
		return nil, failed(err)
	}
	return uses, nil
}
