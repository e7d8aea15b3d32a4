package mysqlstore

import (
	"testing"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A file has the tables of a version and rows of them.
func TestMigrate_RecordsOfReleasedVersionsContinue(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		db := newDB(t)
		s := newStore(t, db)
		goldentest.Write(t, s)
		return append([]byte(s.SQL()), goldentest.MySQL(t, db, "oncemill_dedup")...)
	}, func(t *testing.T, content []byte) {
		db := newDB(t)
		_, err := sqlstore.RunScript(t.Context(), db, string(content), "oncemill_dedup", "record_key")
		if err != nil {
			t.Fatal(err)
		}
		goldentest.Read(t, newStore(t, db)) // which migrates
	})
}
