package mysqloutbox_test

import (
	"crypto/sha256"
	"fmt"
	"os"
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

// A message that a released version wrote keeps its row: names of IDs that begin with a time are made anew.
func TestMigrate_MessagesOfReleasedVersionsAreNotWrittenTwice(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	content, err := os.ReadFile("testdata/golden/v0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sqlstore.RunScript(t.Context(), db, string(content), "oncemill_outbox", "message_key"); err != nil {
		t.Fatal(err)
	}
	written := []producer.Message{
		{ID: producer.NewID(), Topic: "orders"}, {ID: producer.DeriveID("orders", "1"), Topic: "orders"},
	}
	for _, m := range written {
		name := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", m.Topic, m.ID, "")) // as that version names rows
		_, err := db.ExecContext(t.Context(), "INSERT INTO oncemill_outbox (name, at, written_at, not_before, id, topic, "+
			"copy, message_key, header, payload) VALUES (?, 1, 1, 1, ?, ?, '', '', '', '')", name[:], m.ID, m.Topic)
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := func() (n int) {
		if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM oncemill_outbox").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := rows()
	if err := write(t.Context(), boxIn(t, db, mysqloutbox.Config{}), db, written...); err != nil {
		t.Fatal(err)
	}
	if got := rows(); got != before {
		t.Errorf("there are %d rows after the messages were written again, want %d", got, before)
	}
}
