package cassandrastore

import (
	"context"
	"errors"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

var _ dedupstore.ScopeKeeper = (*Store)(nil)

// scopes keep what is known of a group in one row, beside the records.
func (s *Store) scopes() recordstore.Scopes {
	return recordstore.Scopes{Package: "cassandrastore", Read: s.readScopes, Write: s.writeScopes}
}

// NoteScopes implements [dedupstore.ScopeKeeper].
func (s *Store) NoteScopes(ctx context.Context, uses []dedupstore.ScopeUse) error {
	return s.scopes().NoteScopes(ctx, uses)
}

// Scopes implements [dedupstore.ScopeKeeper].
func (s *Store) Scopes(ctx context.Context, tenant, group string) ([]dedupstore.ScopeUse, error) {
	return s.scopes().Scopes(ctx, tenant, group)
}

// scopesName is where the scopes of a group are: scopes:tenant:group. It has a colon less than the name of a record.
func scopesName(tenant, group string) string {
	return dedupstore.Scope{Tenant: "scopes", Group: tenant, Handler: group}.String()
}

func (s *Store) readScopes(ctx context.Context, tenant, group string) (v recordstore.ScopesValue, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query(s.cql.read, scopesName(tenant, group)).Consistency(s.serial)
		return q.ScanContext(ctx, &v.Number, &v.Data)
	})
	if errors.Is(err, gocql.ErrNotFound) {
		err = nil
	}
	return v, err
}

// writeScopes makes a lightweight transaction, as the other rows of the table need.
func (s *Store) writeScopes(
	ctx context.Context, tenant, group string, data []byte, seen recordstore.ScopesValue,
) error {
	seconds := int(dedupstore.ScopeRetention.Seconds())
	cql, values := s.cql.create, []any{seconds, recordstore.NewNumber(), data, scopesName(tenant, group)}
	if seen.Number != 0 {
		cql, values = s.cql.replace, append(values, seen.Number)
	}
	err := s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query(cql, values...).Consistency(s.quorum).SerialConsistency(s.serial)
		applied, err := q.MapScanCASContext(ctx, map[string]any{})
		if err == nil && !applied {
			err = recordstore.ErrConflict
		}
		return err
	})
	if inDoubt(err) { // the next read settles it
		return recordstore.ErrConflict
	}
	return err
}
