package sqliteoutbox_test

import (
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/goldentest/goldenrows"
	"github.com/oncemill/oncemill/producer"
)

// A file has the table of a version and rows of it.
func TestMigrate_RowsOfReleasedVersionsArePublished(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		db := open(t, filepath.Join(t.TempDir(), "new.db"))
		box := boxIn(t, db)
		goldenrows.Write(t, box, func(messages ...producer.Message) { write(t, box, db, messages...) })
		return goldentest.SQLite(t, db)
	}, func(t *testing.T, content []byte) {
		db := open(t, filepath.Join(t.TempDir(), "old.db"))
		mustExec(t, db, string(content))
		goldenrows.Read(t, boxIn(t, db)) // which migrates
	})
}
