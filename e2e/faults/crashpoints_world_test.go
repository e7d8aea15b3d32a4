package faults_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/producer"
)

// onJetStream makes the streams of a pair, and the consumer.
func onJetStream(r *crashRig) (w crashWorld, js jetstream.JetStream) {
	r.Helper()
	server := natstest.Start(r.T)
	r.task.NATS, js = server.URL(), server.JetStream()
	for _, name := range []string{ordersStream, r.task.letters(), r.task.receipts()} {
		createStream(r.T, js, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Duplicates: 100 * time.Millisecond,
		})
	}
	natstest.Ask(r.T, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return js.CreateConsumer(ctx, ordersStream, jetstream.ConsumerConfig{
			Durable: consumerName, AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second,
		})
	})
	w.publish = func(ids ...string) {
		for _, id := range ids {
			if _, err := js.PublishMsg(r.Context(), &nats.Msg{
				Subject: ordersStream, Header: nats.Header{producer.HeaderID: {id}}, Data: []byte(id),
			}); err != nil {
				r.Fatal(err)
			}
		}
	}
	w.drained = func() bool {
		cons, err := js.Consumer(r.Context(), ordersStream, consumerName)
		if err != nil {
			return false
		}
		i := cons.CachedInfo()
		return i.NumPending == 0 && i.NumAckPending == 0
	}
	w.letters = func() []string { return headersIn(r.T, js, r.task.letters(), producer.HeaderOriginalID) }
	w.receipts = func() []string { return headersIn(r.T, js, r.task.receipts(), producer.HeaderID) }
	return w, js
}

// looksAt is how a rig learns which messages have an outcome.
func (r *crashRig) looksAt(store dedupstore.Inspector) func(keys []dedupstore.Key) map[string]bool {
	return func(keys []dedupstore.Key) map[string]bool {
		r.Helper()
		records, err := store.Look(r.Context(), keys)
		if err != nil {
			r.Fatal(err)
		}
		finished := map[string]bool{}
		for _, rec := range records {
			if rec.State == dedupstore.Finished {
				finished[rec.Key.ID] = true
			}
		}
		return finished
	}
}

func onRedis(r *crashRig) crashWorld {
	r.Helper()
	server := redistest.Start(r.T, "--appendonly", "no")
	r.task.Redis = server.Addr
	rdb := redis.NewClient(server.Options())
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		store.Close()
		rdb.Close()
	})
	w, _ := onJetStream(r)
	w.finished = r.looksAt(store)
	return w
}

func onStream(r *crashRig) crashWorld {
	r.Helper()
	w, js := onJetStream(r)
	createStream(r.T, js, natskv.Stream(pricesStream, 1, "prices.>"))
	store, err := natskv.New(js, natskv.Config{
		Stream: pricesStream, Subject: pricesRecords, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		r.Fatal(err)
	}
	w.finished = r.looksAt(store)
	w.effects = func() map[string][]string {
		var prices []crashPrice
		readStream(r.T, js, pricesStream, pricesSubject+">", func(m jetstream.Msg) {
			var p crashPrice
			if err := json.Unmarshal(m.Data(), &p); err != nil {
				r.Fatal(err)
			}
			prices = append(prices, p)
		})
		return pricesOf(prices)
	}
	return w
}

func onPostgres(r *crashRig) crashWorld {
	r.Helper()
	w, _ := onJetStream(r)
	r.task.SQL = postgrestest.Shared(r.T).NewDatabase(r.T).DSN()
	pool, store, box, err := crashPool(context.Background(), r.task.SQL, func(*pgxpool.Config) {})
	if err == nil {
		r.Cleanup(pool.Close)
		err = store.Migrate(r.Context())
	}
	if err == nil {
		err = box.Migrate(r.Context())
	}
	if err == nil {
		_, err = pool.Exec(r.Context(), effectsTable)
	}
	if err != nil {
		r.Fatal(err)
	}
	query := func(q string) [][2]string {
		rows, err := pool.Query(r.Context(), q)
		if err != nil {
			r.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c [2]string, err error) {
			return c, row.Scan(&c[0], &c[1])
		})
		if err != nil {
			r.Fatal(err)
		}
		return all
	}
	empty := w.drained
	w.drained = func() bool {
		s, err := box.Stats(r.Context())
		return err == nil && s.Pending == 0 && empty()
	}
	w.finished, w.effects, w.rows = r.looksAt(store), effectsIn(query), rowsIn(query)
	return w
}

func onMariaDB(r *crashRig) crashWorld {
	r.Helper()
	r.task.SQL = mysqltest.Shared(r.T).NewDatabase(r.T).DSN()
	db, store, box, err := crashMariaDB(r.task.SQL, func(*mysql.Config) {})
	if err == nil {
		r.Cleanup(func() { db.Close() })
		err = store.Migrate(r.Context())
	}
	if err == nil {
		err = box.Migrate(r.Context())
	}
	if err == nil {
		_, err = db.ExecContext(r.Context(), effectsTable)
	}
	if err != nil {
		r.Fatal(err)
	}
	w := onKafka(r)
	query := func(q string) [][2]string { return queryMariaDB(r, db, q) }
	consumed := w.drained
	w.drained = func() bool {
		s, err := box.Stats(r.Context())
		return err == nil && s.Pending == 0 && consumed()
	}
	w.finished, w.effects, w.rows = r.looksAt(store), effectsIn(query), rowsIn(query)
	return w
}

func queryMariaDB(r *crashRig, db *sql.DB, q string) (all [][2]string) {
	r.Helper()
	rows, err := db.QueryContext(r.Context(), q)
	if err != nil {
		r.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var c [2]string
		if err := rows.Scan(&c[0], &c[1]); err != nil {
			r.Fatal(err)
		}
		all = append(all, c)
	}
	if err := rows.Err(); err != nil {
		r.Fatal(err)
	}
	return all
}

// effectsIn reads the effects of each message.
func effectsIn(query func(string) [][2]string) func() map[string][]string {
	return func() map[string][]string {
		all := map[string][]string{}
		for _, c := range query(`SELECT id, '' FROM effects`) {
			all[c[0]] = append(all[c[0]], "effect")
		}
		return all
	}
}

// rowsIn reads the IDs in an outbox.
func rowsIn(query func(string) [][2]string) func() []string {
	return func() (ids []string) {
		for _, c := range query(`SELECT id, '' FROM oncemill_outbox`) {
			ids = append(ids, c[0])
		}
		return ids
	}
}

// onKafka makes the topics of a pair: at kfake, in a proof at a broker.
func onKafka(r *crashRig) (w crashWorld) {
	r.Helper()
	k := kafka{}
	if proof {
		k.addr = kafkatest.Shared(r.T).Addr
	} else {
		k = fakeKafka(r.T)
	}
	r.task.Kafka, r.task.Topic = k.addr, fmt.Sprintf("crash-%d-", rand.Uint32())
	adm, source := kadm.NewClient(k.client(r.T)), k.client(r.T)
	for _, topic := range []string{r.task.Topic, r.task.letters(), r.task.receipts()} {
		k.createTopic(r.T, adm, topic, 2)
	}
	w.publish = func(ids ...string) {
		for _, id := range ids {
			rec := &kgo.Record{
				Topic: r.task.Topic, Key: []byte(id), Value: []byte(id),
				Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(id)}},
			}
			if err := source.ProduceSync(r.Context(), rec).FirstErr(); err != nil {
				r.Fatal(err)
			}
		}
	}
	w.drained = func() bool {
		lags, err := adm.Lag(r.Context(), r.task.Topic)
		return err == nil && lags.Ok() && lags[r.task.Topic].Lag.Total() == 0
	}
	w.letters = func() []string { return kafkaHeaders(r.T, k, adm, r.task.letters(), producer.HeaderOriginalID) }
	w.receipts = func() []string { return kafkaHeaders(r.T, k, adm, r.task.receipts(), producer.HeaderID) }
	return w
}

// kafkaHeaders are the values of a header in a topic.
func kafkaHeaders(t *testing.T, k kafka, adm *kadm.Client, topic, header string) (all []string) {
	t.Helper()
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	ends.Each(func(o kadm.ListedOffset) { left += int(o.Offset) })
	cl := k.client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for left > 0 {
		fetches := cl.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			left--
			for _, h := range rec.Headers {
				if h.Key == header {
					all = append(all, string(h.Value))
				}
			}
		})
	}
	return all
}
