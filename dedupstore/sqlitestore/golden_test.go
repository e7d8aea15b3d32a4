package sqlitestore

import (
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/internal/goldentest"
)

// A file has the tables of a version and rows of them.
func TestMigrate_RecordsOfReleasedVersionsContinue(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		s, db := newStore(t)
		goldentest.Write(t, s)
		return goldentest.SQLite(t, db)
	}, func(t *testing.T, content []byte) {
		db := openAt(t, filepath.Join(t.TempDir(), "old.db"))
		mustExec(t, db, string(content))
		goldentest.Read(t, storeIn(t, db)) // which migrates
	})
}
