package pgoutbox_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// After a crash of many relays, their leases may hold more rows than one call can write in time.
func TestLease_TakesOverInParts(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	const rows, leases = 6000, 60
	mustExec(t, db, `INSERT INTO oncemill_outbox (number, id, topic, payload) SELECT i, i, 'orders', '' FROM generate_series(1, $1::integer) AS i`, rows)
	mustExec(t, db, `INSERT INTO oncemill_outbox_lease (token, ends_at, numbers)
		SELECT number % $1, clock_timestamp(), array_agg(number) FROM oncemill_outbox GROUP BY 1`, leases)
	before := 0
	for before < rows {
		if healthy := lease(t, box, "healthy", time.Minute); len(healthy) != 0 {
			t.Fatalf("%d rows whose lease ended were handed out as healthy", len(healthy))
		}
		taken := count(t, db, `unknowns = 1`)
		if taken == before || taken > before+2*20*100 {
			t.Fatalf("%d rows were taken over, then %d", before, taken)
		}
		before = taken
	}
	if n := len(leaseKind(t, box, "suspects", time.Minute, true)); n != 100 || leased(t, db) != n {
		t.Errorf("%d rows were handed out, and %d are leased", n, leased(t, db))
	}
}

// Row numbers say nothing about order. A lease has them in the order of its rows: settling compares the two lists,
// which is cheap when they are alike.
func TestLease_HandsOutTheLongestDueFirst(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"written_at", "date_trunc('day', written_at)"} { // due one after the other; at once
		box, db := newBox(t)
		var want []string
		var all []producer.Message
		for i := range 60 {
			want = append(want, strconv.Itoa(i))
			all = append(all, message(strconv.Itoa(i)))
		}
		write(t, box, db, all[:20]...)
		for _, m := range all[20:] {
			write(t, box, db, m)
		}
		mustExec(t, db, `UPDATE oncemill_outbox SET written_at = `+at)
		mustExec(t, db, `UPDATE oncemill_outbox SET due_at = written_at - interval '1 hour' WHERE id = '59'`) // a retry
		want = slices.Concat(want[59:], want[:59])
		rows := lease(t, box, "t", time.Minute)
		if got := idsOf(rows); !slices.Equal(got, want) {
			t.Errorf("due at %s: %v", at, got)
		}
		var leased, numbers []int64
		for _, row := range rows {
			numbers = append(numbers, row.Number)
		}
		if err := db.QueryRow(t.Context(), `SELECT numbers FROM oncemill_outbox_lease`).Scan(&leased); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(leased, numbers) {
			t.Errorf("due at %s: the lease has other numbers, or another order: %v, %v", at, leased, numbers)
		}
	}
}
