package sqliteoutbox

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestStatements_ReadOnlyWhatTheyWant(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	box, err := New(db, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		query, index string
		arguments    int
	}{
		{box.sql.lease, "oncemill_outbox_next (<expr>=? AND due_at<?)", 5},
		{box.sql.back, "oncemill_outbox_leased (token=?)", 1},
		{box.sql.clean, "oncemill_outbox_published (published_at>? AND published_at<?)", 2},
		{first(box.partOf(0, toldSQL)), "oncemill_outbox_next (<expr>=? AND due_at>?)", 9},
		{first(box.partOf(1, toldSQL)), "oncemill_outbox_next (<expr>=? AND due_at>?)", 9},
		{first(box.partOf(2, toldSQL)), "oncemill_outbox_dead (dead_at>?)", 9},
		{first(box.partOf(3, toldSQL)), "oncemill_outbox_published (published_at>?)", 9},
		{box.sql.published, "oncemill_outbox_leased (token=? AND rowid=?)", 3},
		{box.sql.removed, "oncemill_outbox_leased (token=? AND rowid=?)", 2},
		{box.sql.unsent, "INTEGER PRIMARY KEY (rowid=?)", 7},
		{box.sql.stats, "SCAN oncemill_outbox USING INDEX oncemill_outbox_next", 0},
		{box.sql.requeue, "oncemill_outbox_dead", 2},
		{box.sql.discard, "oncemill_outbox_dead", 1},
		{box.sql.replay, "oncemill_outbox_published (published_at>? AND published_at<?)", 7},
		{box.sql.revive, "(topic=? AND id=? AND copy=?)", 5},
		{box.sql.find, "(topic=? AND id=? AND copy=?)", 3},
	} {
		rows, err := db.Query("EXPLAIN QUERY PLAN "+tc.query, make([]any, tc.arguments)...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var plan []string
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		got := strings.Join(plan, "; ")
		if !strings.Contains(got, tc.index) || strings.Contains(got, "TEMP B-TREE") ||
			strings.Contains(got+";", "SCAN oncemill_outbox;") {
			t.Errorf("plan %q, want the index %s and no sorting, for %s", got, tc.index, tc.query)
		}
	}
}

// first is the part of a statement that reads the table.
func first(reported string) string {
	looked, _, _ := strings.Cut(reported, "),\ntold AS")
	return looked + ") SELECT * FROM looked"
}
