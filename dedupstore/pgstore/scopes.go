package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var (
	_ dedupstore.ScopeKeeper = (*Store)(nil)
	_ dedupstore.ScopeKeeper = (*inbox)(nil)
)

const (
	// noteScopesSQL writes in the order of the scopes, so that two of it never wait for each other in a circle.
	noteScopesSQL = `
INSERT INTO {scopes} AS s (scope, first_at, last_at)
SELECT u.scope, min(u.first_at), max(u.last_at)
FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[]) AS u (scope, first_at, last_at)
GROUP BY u.scope ORDER BY u.scope
ON CONFLICT (scope) DO UPDATE SET
	first_at = least(s.first_at, excluded.first_at), last_at = greatest(s.last_at, excluded.last_at)`

	scopesSQL = `SELECT scope, first_at, last_at FROM {scopes} WHERE scope >= $1 AND scope < $2`

	keepsScopesSQL = `
SELECT coalesce(bool_and(has_table_privilege(to_regclass('{scopes}'), p)), false)
FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS p`
)

// NoteScopes implements [dedupstore.ScopeKeeper].
func (f *form) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	if err := dedupstore.ValidateScopes(uses); err != nil || len(uses) == 0 {
		return err
	}
	n := len(uses)
	scopes, firsts, lasts := make([]string, n), make([]time.Time, n), make([]time.Time, n)
	for i, u := range uses {
		scopes[i], firsts[i], lasts[i] = u.Scope.String(), u.First, u.Last
	}
	err := f.store.again(ctx, func() error {
		var batch pgx.Batch
		batch.Queue(useIndexes + beHasty)
		batch.Queue(f.store.sql.noteScopes, scopes, firsts, lasts)
		return f.store.pool.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return f.store.failed("note scopes", err)
	}
	return nil
}

// Scopes implements [dedupstore.ScopeKeeper].
func (f *form) Scopes(ctx context.Context, tenant, group string) (uses []dedupstore.ScopeUse, err error) {
	from, to := sqlstore.ScopesOf(tenant, group)
	rows, _ := f.store.pool.Query(ctx, f.store.sql.scopes, from, to)
	var name string
	var u dedupstore.ScopeUse
	_, err = pgx.ForEachRow(rows, []any{&name, &u.First, &u.Last}, func() (err error) {
		u.Scope, err = dedupstore.ParseScope(name)
		uses = append(uses, u)
		return err
	})
	if err != nil {
		return nil, f.store.failed("read scopes", err)
	}
	return uses, nil
}

// checkScopes adds a warning if scopes cannot be noted. Claims go on without.
func (s *Store) checkScopes(ctx context.Context, conn *pgx.Conn, warnings []string) ([]string, error) {
	var keeps bool
	err := conn.QueryRow(ctx, s.sql.keepsScopes).Scan(&keeps)
	if err == nil && !keeps {
		warnings = append(warnings, "table "+s.cfg.located("_scopes")+" is missing or may not be used: a handler "+
			"whose name has changed is not noticed; call Migrate, or GRANT SELECT, INSERT, UPDATE on it to the "+
			"database user")
	}
	return warnings, err
}
