package mysqloutbox_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/goldentest/goldenrows"
	"github.com/oncemill/oncemill/internal/sqlstore"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/producer"
)

// A file has the tables of a version and rows of them.
func TestMigrate_RowsOfReleasedVersionsArePublished(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		db := newDB(t)
		box := boxIn(t, db, mysqloutbox.Config{})
		goldenrows.Write(t, box, func(messages ...producer.Message) {
			if err := write(t.Context(), box, db, messages...); err != nil {
				t.Fatal(err)
			}
		})
		return append([]byte(box.SQL()), goldentest.MySQL(t, db, "oncemill_outbox")...)
	}, func(t *testing.T, content []byte) {
		db := newDB(t)
		_, err := sqlstore.RunScript(t.Context(), db, string(content), "oncemill_outbox", "message_key")
		if err != nil {
			t.Fatal(err)
		}
		goldenrows.Read(t, boxIn(t, db, mysqloutbox.Config{})) // which migrates
	})
}
