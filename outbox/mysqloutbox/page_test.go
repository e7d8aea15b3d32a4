package mysqloutbox_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
)

var pageSQL = regexp.MustCompile("(?s)```sql\n-- MySQL\n(.*?)```")

// The statements of docs/outbox.md find what they say, and a row that is given up stays dead, although a relay was
// trying it just then.
func TestPage_StatementsDoAsItSays(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	found := pageSQL.FindAllStringSubmatch(string(page), -1)
	if len(found) != 3 {
		t.Fatalf("the page has %d statements for MySQL, want 3", len(found))
	}
	unanswered, giveUp, published := found[0][1], found[1][1], found[2][1]

	db := newDB(t)
	box := boxIn(t, db, mysqloutbox.Config{})
	lists := func(query, want string) {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		names, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for rows.Next() {
			values, into := make([]string, len(names)), make([]any, len(names))
			for i := range into {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, values[0])
			if values[1] != "orders" || !strings.HasPrefix(values[2], "20") { // the year

				t.Errorf("%s is listed as %q", values[0], values)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s\nlists %q, want %q", query, got, want)
		}
	}

	mustWrite(t, box, db, message("", "unanswered"), message("", "published"), message("", "leased"))
	var results []outbox.Result
	for _, r := range relaytest.Lease(t, box, "t", time.Minute) {
		state := map[string]outbox.State{"unanswered": outbox.Unknown, "published": outbox.Published}[r.Message.ID]
		if state != "" {
			results = append(results, outbox.Result{Number: r.Number, State: state, Error: "timeout"})
		}
	}
	relaytest.Settle(t, box, "t", results...)
	relaytest.LeaseKind(t, box, "u", time.Minute, false)
	mustWrite(t, box, db, message("", "pending"))
	lists(unanswered, "unanswered")
	lists(published, "published")

	tried := relaytest.LeaseKind(t, box, "v", time.Minute, true)
	if len(tried) != 1 {
		t.Fatalf("%d rows are tried again, want 1", len(tried))
	}
	for _, id := range []string{"unanswered", "leased", "published", "pending"} {
		mustExec(t, db, strings.NewReplacer("id = '…'", "id = '"+id+"'", "topic = '…'", "topic = 'orders'").Replace(giveUp))
	}
	relaytest.Settle(t, box, "v", outbox.Result{Number: tried[0].Number, State: outbox.Unknown})
	lists(unanswered, "")
	dead, err := box.List(t.Context(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "")
	if err != nil || len(dead.Rows) != 1 || dead.Rows[0].ID != "unanswered" || time.Since(dead.Rows[0].Ended) > time.Hour {
		t.Errorf("dead are %+v, %v; want the one that got no answer", dead.Rows, err)
	}
	if n, err := box.Discard(t.Context(), outbox.RowInfo{ID: "unanswered"}); n != 1 || err != nil {
		t.Errorf("%d rows are discarded, %v; want 1", n, err)
	}
}
