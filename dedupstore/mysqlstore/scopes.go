package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	if err := dedupstore.ValidateScopes(uses); err != nil || len(uses) == 0 {
		return err
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	query := s.noteScopes(uses)
	err := s.again(ctx, func() error {
		_, err := sqlstore.Change(ctx, s.db, query)
		return err
	})
	if err != nil {
		return s.failed("note scopes", err)
	}
	return nil
}

// noteScopes is a statement that locks the rows in their order.
func (s *Store) noteScopes(uses []dedupstore.ScopeUse) string {
	uses = slices.Clone(uses)
	slices.SortFunc(uses, func(a, b dedupstore.ScopeUse) int { return strings.Compare(a.String(), b.String()) })
	query := fmt.Appendf(nil, "INSERT INTO `%s_scopes` (scope, first_at, last_at) VALUES ", s.config.Table)
	for i, u := range uses {
		if i > 0 {
			query = append(query, ',')
		}
		query = sqlstore.AppendRow(query, u.Scope.String(), u.First.UnixMicro(), u.Last.UnixMicro())
	}
	return string(query) + " ON DUPLICATE KEY UPDATE first_at = LEAST(first_at, VALUES(first_at)), " +
		"last_at = GREATEST(last_at, VALUES(last_at))"
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s *Store) Scopes(ctx context.Context, tenant, group string) (uses []dedupstore.ScopeUse, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	from, to := sqlstore.ScopesOf(tenant, group)
	query := fmt.Appendf(nil, "SELECT scope, first_at, last_at FROM `%s_scopes` WHERE scope >= ", s.config.Table)
	query = append(sqlstore.AppendRow(query, from), " AND scope < "...)
	err = sqlstore.EachRow(ctx, s.db, string(sqlstore.AppendRow(query, to)), func(rows *sql.Rows) error {
		var name string
		var first, last int64
		if err := rows.Scan(&name, &first, &last); err != nil {
			return err
		}
		scope, err := dedupstore.ParseScope(name)
		uses = append(uses, dedupstore.ScopeUse{
			Scope: scope, First: time.UnixMicro(first), Last: time.UnixMicro(last),
		})
		return err
	})
	if err != nil {
		return nil, s.failed("read scopes", err)
	}
	return uses, nil
}

// checkScopes warns if scopes cannot be noted, by a note that it rolls back. Claims go on without.
func (s *Store) checkScopes(ctx context.Context) []string {
	scope := dedupstore.Scope{Tenant: "oncemill", Group: "check", Handler: "check"}
	probe := s.noteScopes([]dedupstore.ScopeUse{{Scope: scope, First: time.Now(), Last: time.Now()}})
	err := sqlstore.InMySQLTx(ctx, s.db, longestSilence, func(tx sqlstore.Querier) error {
		if _, err := tx.ExecContext(ctx, probe); err != nil {
			return err
		}
		return errProbe
	})
	if errors.Is(err, errProbe) {
		return nil
	}
	return []string{fmt.Sprintf("a handler whose name has changed is not noticed: %v", s.failed("note scopes", err))}
}
