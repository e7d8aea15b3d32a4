package mysqlstore

import (
	"fmt"
	"strings"
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
		columns := goldentest.Texts(t, db, `
			SELECT IF(data_type LIKE '%binary' OR data_type LIKE '%blob',
				concat('IF(', column_name, ' IS NULL, ''NULL'', concat(''x'''''', hex(', column_name, '), ''''''''))'),
				concat('quote(', column_name, ')'))
			FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'oncemill_dedup'
			ORDER BY ordinal_position`)
		rows := goldentest.Texts(t, db, fmt.Sprintf(
			"SELECT concat('INSERT INTO oncemill_dedup VALUES (', concat_ws(', ', %s), ');') FROM oncemill_dedup "+
				"ORDER BY id",
			strings.Join(columns, ", ")))
		return []byte(s.SQL() + strings.Join(rows, "\n") + "\n")
	}, func(t *testing.T, content []byte) {
		db := newDB(t)
		_, err := sqlstore.RunScript(t.Context(), db, string(content), "oncemill_dedup", "record_key")
		if err != nil {
			t.Fatal(err)
		}
		goldentest.Read(t, newStore(t, db)) // which migrates
	})
}
