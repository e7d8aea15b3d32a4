package pgoutbox_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/relaytest"
	"github.com/oncemill/oncemill/producer"
)

// TestRelay_BesideAnOldOutboxWithTheSameIDsEachMessageHasOneEffect tests what docs/adopting.md says of a hand-written
// outbox that drains beside a new one. If a request was repeated across the deployment, both tables have its message.
func TestRelay_BesideAnOldOutboxWithTheSameIDsEachMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	mustExec(t, pool, `CREATE TABLE old_outbox (id text PRIMARY KEY, payload bytea NOT NULL, sent boolean NOT NULL DEFAULT false)`)

	// Of ten orders in a row, five are in the old table alone, three in the new one alone, and two in both.
	ids := numbered(60)
	for i, id := range ids {
		if i%10 < 5 || i%10 >= 8 {
			mustExec(t, pool, `INSERT INTO old_outbox (id, payload) VALUES ($1, $2)`, id, message(id).Payload)
		}
		if i%10 >= 5 {
			write(t, box, pool, message(id))
		}
	}

	b := &relaytest.Broker{}
	stop := relaytest.Start(t, box, b, relaytest.Quick())
	type oldRow struct {
		ID      string
		Payload []byte
	}
	for { // as hand-written relays drain
		rows, err := pool.Query(t.Context(), `SELECT id, payload FROM old_outbox WHERE NOT sent ORDER BY id LIMIT 7`)
		if err != nil {
			t.Fatal(err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[oldRow])
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			break
		}
		for _, row := range found {
			m := producer.Message{Topic: "orders", Payload: row.Payload, Header: producer.Header{producer.HeaderID: row.ID}}
			for range 2 { // the first acknowledgement was lost
				b.Publish(t.Context(), m)
			}
			mustExec(t, pool, `UPDATE old_outbox SET sent = true WHERE id = $1`, row.ID)
		}
	}
	relaytest.Eventually(t, "the new outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()
	const old, both, fresh = 30, 12, 18
	if n := len(b.Messages()); n < 2*(old+both)+fresh+both {
		t.Errorf("%d messages were published: some had no copy", n)
	}

	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	config := consumer.Config{Group: "billing"}
	config.Policy.Logger = slog.New(slog.DiscardHandler)
	once, err := consumer.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	effects := map[string]int{}
	var all sync.WaitGroup
	for _, m := range b.Messages() {
		all.Go(func() {
			d := once.Process(context.Background(), consumer.Delivery{Handler: "charge", Topic: m.Topic, Header: m.Header, Payload: m.Payload},
				func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					effects[string(m.Payload)]++
					return nil
				})
			if d.Action != consumer.Ack {
				t.Errorf("a delivery was not acknowledged: %+v", d)
			}
		})
	}
	all.Wait()
	for _, id := range ids {
		if n := effects[string(message(id).Payload)]; n != 1 {
			t.Errorf("%s had %d effects, want one", id, n)
		}
	}
}
