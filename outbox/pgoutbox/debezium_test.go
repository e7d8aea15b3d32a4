package pgoutbox_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer"
)

func TestDebezium_ColumnsAreWhatItsRouterReads(t *testing.T) {
	t.Parallel()
	for _, ordered := range []bool{false, true} {
		pool := newPool(t)
		box := boxIn(t, pool, pgoutbox.Config{Debezium: true, Ordered: ordered})
		write(t, box, pool,
			producer.Message{ID: "id-1", Topic: "orders", Key: "customer 7", Payload: []byte(`{"amount":5}`), Header: producer.Header{"ce_type": "OrderCreated", "a": "b"}},
			producer.Message{ID: "id-2", Topic: "invoices"})
		type event struct{ ID, Topic, Key, Type, Payload, Header string }
		var got []event
		rows, err := pool.Query(t.Context(), `SELECT id, aggregatetype, coalesce(aggregateid, 'NULL'), type, convert_from(payload, 'UTF8'), coalesce(header->>'a', 'NULL')
			FROM oncemill_outbox ORDER BY id`)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var e event
			if err := rows.Scan(&e.ID, &e.Topic, &e.Key, &e.Type, &e.Payload, &e.Header); err != nil {
				t.Fatal(err)
			}
			got = append(got, e)
		}
		if diff := cmp.Diff([]event{
			{"id-1", "orders", "customer 7", "OrderCreated", `{"amount":5}`, "b"},
			{"id-2", "invoices", "NULL", "invoices", "", "NULL"},
		}, got); diff != "" {
			t.Error(diff)
		}
		again := lease(t, box, "t", time.Minute)
		if len(again) != 2 || again[0].Message.Topic != "orders" || again[0].Message.Key != "customer 7" {
			t.Errorf("the relay reads %+v", again)
		}
	}
}
