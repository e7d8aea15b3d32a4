package sqliteoutbox_test

import (
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// The statement is the package doc's.
func TestLease_RowsFromBeforeTheClockWasSetBackCanBeMadeDue(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile(`//\t(UPDATE .*)\n//\t(WHERE .*)`).FindSubmatch(doc)
	if statement == nil {
		t.Fatal("the package doc has no UPDATE")
	}
	box, db := newBox(t)
	later := message("later")
	later.NotBefore = time.Now().Add(time.Hour)
	write(t, box, db, message("1"), later)
	mustExec(t, db, `UPDATE oncemill_outbox SET written_at = written_at + 86400000000, not_before = not_before + 86400000000, due_at = due_at + 86400000000`)
	if rows := lease(t, box, "early", time.Minute); len(rows) != 0 {
		t.Errorf("due are: %v", idsOf(rows))
	}
	mustExec(t, db, string(statement[1])+" "+string(statement[2]))
	for _, token := range []string{"t", "again"} {
		if got := idsOf(lease(t, box, token, time.Minute)); !slices.Equal(got, []string{"1"}) {
			t.Errorf("due are: %v", got)
		}
		settle(t, box, token)
	}
}

func TestLease_SmallerNumberThatAppearsLaterIsNotSkipped(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"), message("2"))
	for _, r := range lease(t, box, "t", time.Minute) {
		settle(t, box, "t", outbox.Result{Number: r.Number, State: outbox.Published})
		lease(t, box, "t", time.Minute)
	}
	mustExec(t, db, `INSERT INTO oncemill_outbox (number, id, topic, payload, written_at, not_before, due_at) VALUES (-5, 'late', 'orders', x'', 1, 1, 1)`)
	if got := idsOf(lease(t, box, "t2", time.Minute)); !slices.Equal(got, []string{"late"}) {
		t.Errorf("due are: %v", got)
	}
}
