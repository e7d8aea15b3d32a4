package pgoutbox

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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

// boxOfNumbers is an outbox in a schema of its own.
func boxOfNumbers(t *testing.T, schema string, ordered bool) (*Outbox, *pgxpool.Pool) {
	t.Helper()
	pool := postgrestest.Shared(t).Pool(t)
	box, err := New(pool, Config{Schema: schema, Ordered: ordered})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE") })
	return box, pool
}

// These two have one number, which neither of them may lose its row to.
func TestIn_MessagesOfACallWithOneNumberAreTwoRows(t *testing.T) {
	t.Parallel()
	box, pool := boxOfNumbers(t, fmt.Sprintf("twins_%d", os.Getpid()), false)
	var twins []producer.Message
	for _, id := range []string{"0198c5b0-5b3c-7c0e-8f00-000000087f91", "0198c5b0-5b3c-7c0e-8f00-00000038ad58"} {
		m := producer.Message{ID: id, Topic: "orders", Payload: []byte(id)}
		twins = append(twins, m)
		if n := rowNumber(record{Record: outgoing.Record{Message: m}}, 0); n != 1639697750321832461 {
			t.Fatalf("message %s has the number %d", id, n)
		}
	}
	for range 2 {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return box.In(tx).Publish(t.Context(), twins...)
		})
		if err != nil {
			t.Fatal(err)
		}
		page, err := box.List(t.Context(), outbox.Filter{}, "")
		if err != nil || len(page.Rows) != 2 || page.Rows[0].ID == page.Rows[1].ID {
			t.Fatalf("rows %+v, %v, want one of each", page.Rows, err)
		}
	}
}

// What comes after a message that gets its row late has its place behind it, if they have one key.
func TestIn_MessagesWithOneNumberKeepTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	box, pool := boxOfNumbers(t, fmt.Sprintf("places_%d", os.Getpid()), true)
	messages := []producer.Message{
		{ID: "0198c5b0-5b3c-7c0e-8f00-000000087f91", Topic: "orders", Key: "a"},
		{ID: "0198c5b0-5b3c-7c0e-8f00-00000038ad58", Topic: "orders", Key: "b"},
		{ID: "3", Topic: "orders", Key: "b"}, {ID: "4", Topic: "orders", Key: "b"}, {ID: "5", Topic: "orders", Key: "a"},
	}
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return box.In(tx).Publish(t.Context(), messages...) })
	if err != nil {
		t.Fatal(err)
	}
	places := fmt.Sprintf(`SELECT id FROM places_%d.oncemill_outbox WHERE key = 'b' ORDER BY place`, os.Getpid())
	rows, err := pool.Query(t.Context(), places)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if want := []string{messages[1].ID, "3", "4"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("the rows of b are %v, %v; want %v", got, err, want)
	}
}

func TestIn_MessagesWithOneNumberAreTwoRows(t *testing.T) {
	t.Parallel()
	schema := fmt.Sprintf("numbers_%d", os.Getpid())
	box, pool := boxOfNumbers(t, schema, false)
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
