package pgstore

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/goldentest"
)

// A file has the tables of a version, without its functions, and rows of them.
func TestMigrate_RecordsOfReleasedVersionsContinue(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		pool := newPool(t)
		s := newStore(t, pool, Config{})
		goldentest.Write(t, s)
		file := s.sql.schema
		for _, table := range []string{"", "_beats", "_duplicates", "_settings"} {
			rows, err := pool.Query(t.Context(), goldentest.PostgreSQL("oncemill_dedup"+table))
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			file += strings.Join(lines, "")
		}
		return []byte(file)
	}, func(t *testing.T, content []byte) {
		pool := newPool(t)
		mustExec(t, pool, string(content))
		s := newStore(t, pool, Config{}) // migrates
		if _, err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
		goldentest.Read(t, s)
	})
}
