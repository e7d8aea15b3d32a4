package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

// Plan says what Migrate would do, and changes nothing. It looks at the version only, not for what somebody dropped.
func (s *Store) Plan(ctx context.Context) (dedupstore.Migration, error) {
	m := dedupstore.Migration{Wanted: version}
	var settings, records bool
	err := s.pool.QueryRow(ctx, s.sql.present).Scan(&settings, &records)
	if err == nil && settings {
		err = s.pool.QueryRow(ctx, s.sql.version).Scan(&m.Found)
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return dedupstore.Migration{}, s.failed("look at the schema", err)
	}
	if m.Found < version {
		m.SQL = s.SQL()
		if s.cfg.Schema != "" {
			m.SQL = `CREATE SCHEMA IF NOT EXISTS "` + s.cfg.Schema + `";` + "\n" + m.SQL
		}
	}
	return m, nil
}
