package sqlitestore

import (
	"context"
	"fmt"
	"strings"

	"github.com/oncemill/oncemill/dedupstore"
)

// Plan says what Migrate would do, and changes nothing.
func (s *Store) Plan(ctx context.Context) (dedupstore.Migration, error) {
	has, err := s.version(ctx, s.db)
	if err != nil {
		return dedupstore.Migration{}, fmt.Errorf("sqlitestore: look at the table: %w", err)
	}
	m := dedupstore.Migration{Found: has, Wanted: schemaVersion}
	if has < schemaVersion {
		m.SQL = s.script(has)
	}
	return m, nil
}

// script leads from a version to that of schema.sql.
func (s *Store) script(has int) string {
	query := schema + versionSQL
	if has > 0 {
		query = strings.Join(changes[has:], "") + query
	}
	return strings.ReplaceAll(s.in(query), "{version}", fmt.Sprint(schemaVersion))
}
