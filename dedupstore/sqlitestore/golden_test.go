package sqlitestore

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/goldentest"
)

// A file has the tables of a version and rows of them.
func TestMigrate_RecordsOfReleasedVersionsContinue(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		s, db := newStore(t)
		goldentest.Write(t, s)
		file := goldentest.Texts(t, db, `SELECT sql || ';' FROM sqlite_schema WHERE sql IS NOT NULL`)
		for _, table := range goldentest.Texts(t, db, `SELECT name FROM sqlite_schema WHERE type = 'table'`) {
			columns := goldentest.Texts(t, db, `SELECT 'quote(' || name || ')' FROM pragma_table_info(?)`, table)
			values := strings.Join(columns, ` || ', ' || `)
			file = append(file, goldentest.Texts(t, db,
				fmt.Sprintf(`SELECT 'INSERT INTO "%s" VALUES (' || %s || ');' FROM "%[1]s"`, table, values))...)
		}
		return []byte(strings.Join(file, "\n") + "\n")
	}, func(t *testing.T, content []byte) {
		db := openAt(t, filepath.Join(t.TempDir(), "old.db"))
		mustExec(t, db, string(content))
		goldentest.Read(t, storeIn(t, db)) // which migrates
	})
}
