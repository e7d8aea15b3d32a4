package pgoutbox_test

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// TestRelay_BesideAnOldOutboxWithTheSameIDsEachMessageHasOneEffect is what docs/adopting.md says of a hand-written outbox that drains
// beside a new one: of requests that were repeated over the deployment, each table has a message.
func TestRelay_BesideAnOldOutboxWithTheSameIDsEachMessageHasOneEffect(t *testing.T) {
	t.Parallel()
	box, pool := newBox(t)
	mustExec(t, pool, `CREATE TABLE old_outbox (id text PRIMARY KEY, payload bytea NOT NULL, sent boolean NOT NULL DEFAULT false)`)
	server := natstest.Start(t)
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	cons, err := js.CreateConsumer(t.Context(), "orders", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}

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

	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, box, pub, quick())
	drain := func() (n int, err error) { // as hand-written relays do
		rows, err := pool.Query(context.Background(), `SELECT id, payload FROM old_outbox WHERE NOT sent ORDER BY id LIMIT 7`)
		if err != nil {
			return 0, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			ID      string
			Payload []byte
		}])
		for _, row := range found {
			msg := &nats.Msg{Subject: "orders", Data: row.Payload, Header: nats.Header{producer.HeaderID: {row.ID}}}
			for range 2 { // the first acknowledgement was lost
				if _, err := js.PublishMsg(context.Background(), msg); err != nil {
					return n, err
				}
			}
			if _, err := pool.Exec(context.Background(), `UPDATE old_outbox SET sent = true WHERE id = $1`, row.ID); err != nil {
				return n, err
			}
			n++
		}
		return n, err
	}
	for {
		n, err := drain()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	eventually(t, "the new outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()

	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	config := consumer.Config{Group: "billing"}
	config.Policy.Logger = quiet
	once, err := consumer.New(store, config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	effects := map[string]int{}
	w, err := natsjs.NewWorker(once, js, cons, func(_ context.Context, msg jetstream.Msg) error {
		mu.Lock()
		defer mu.Unlock()
		effects[string(msg.Data())]++
		return nil
	}, natsjs.Config{Handler: "charge", Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stream, err := js.Stream(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	const old, both, fresh = 30, 12, 18
	if n := stream.CachedInfo().State.Msgs; n < 2*(old+both)+fresh {
		t.Errorf("%d messages in the stream: some had no copy", n)
	}
	eventually(t, "all to be handled", func() bool {
		info, err := cons.Info(context.Background())
		return err == nil && info.AckFloor.Stream == stream.CachedInfo().State.LastSeq
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if n := effects[string(message(id).Payload)]; n != 1 {
			t.Errorf("%s had %d effects, want one", id, n)
		}
	}
}
