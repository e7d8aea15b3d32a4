package pgoutbox

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRowNumber_NeverChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		id   string
		try  int
		want int64
	}{
		{"1", 0, -3417366358987141230}, {"1", 1, -1275229631330612205}, {"0198c5b0-5b3c-7c0e-8f00-000000000000", 0, 1639714675008680751},
	} {
		r := record{Record: outgoing.Record{Message: producer.Message{ID: tc.id, Topic: "orders"}}}
		if got := rowNumber(r, tc.try); got != tc.want {
			t.Errorf("rowNumber(%q, %d) = %d, want %d", tc.id, tc.try, got, tc.want)
		}
	}
	if got := partition("customer 7"); got != 36 {
		t.Errorf("partition = %d, want 36", got)
	}
}

func TestRowNumber_OfMessagesOfOneTimeLieTogether(t *testing.T) {
	t.Parallel()
	seen := map[int64]bool{}
	var first int64
	for i := range 1000 {
		n := rowNumber(record{Record: outgoing.Record{Message: producer.Message{ID: producer.NewID(), Topic: "orders"}}}, 0)
		if i == 0 {
			first = n
		}
		if buckets := n>>44 - first>>44; buckets < 0 || buckets > 10 && buckets < 1<<20-10 {
			t.Fatalf("number %d is %d buckets from the first", i, buckets)
		}
		seen[n] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different numbers", len(seen))
	}
}

func TestIn_MessagesWithOneNumberAreTwoRows(t *testing.T) {
	t.Parallel()
	pool := postgrestest.Shared(t).Pool(t)
	schema := fmt.Sprintf("numbers_%d", os.Getpid())
	box, err := New(pool, Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
	m := producer.Message{ID: "1", Topic: "orders", Payload: []byte("x")}
	records, err := box.records(t.Context(), []producer.Message{m})
	if err != nil {
		t.Fatal(err)
	}
	r := records[0]
	if _, err := pool.Exec(t.Context(), `INSERT INTO `+schema+`.oncemill_outbox (number, id, topic, payload) VALUES ($1, 'foreign', 'orders', 'x')`, r.number); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return box.In(tx).Publish(t.Context(), m) })
		if err != nil {
			t.Fatal(err)
		}
	}
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: "t", Limit: 10, Lease: time.Minute})
	if err != nil || len(rows) != 2 || rows[1].Message.ID != "1" || rows[1].Number == r.number {
		t.Errorf("rows %+v, %v, want the foreign one and one of the message", rows, err)
	}
}
