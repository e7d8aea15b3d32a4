package pgoutbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/goldentest/goldenrows"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

// A file has the tables of a version and rows of them.
func TestMigrate_RowsOfReleasedVersionsArePublished(t *testing.T) {
	t.Parallel()
	goldentest.Run(t, func(t *testing.T) []byte {
		box, pool := newBox(t)
		goldenrows.Write(t, box, func(messages ...producer.Message) { write(t, box, pool, messages...) })
		rows, err := pool.Query(t.Context(), goldentest.PostgreSQL("oncemill_outbox"))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return []byte(box.SQL() + strings.Join(lines, ""))
	}, func(t *testing.T, content []byte) {
		pool := newPool(t)
		mustExec(t, pool, string(content))
		goldenrows.Read(t, boxIn(t, pool, pgoutbox.Config{})) // which migrates
	})
}
