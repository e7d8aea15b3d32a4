package e2e_test

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/dedupstore/mysqlstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/mysqloutbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/idempotencykey"
	"github.com/oncemill/oncemill/producer/webhook"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A wrong setting is one that can never work, and what its error has to name.
type wrong struct {
	names string // the package, and behind it the field or what is missing
	err   error
}

// remedy is how an error says what to do instead.
var remedy = regexp.MustCompile(`\b(wants?|set|needs?|use|give|is nil|is empty|call|make|take|choose|raise|lower|leave|` +
	`limit|allows|contains|at (least|most)|required|must|from|to|only)\b`)

// Settings that can never work are refused when they are given, with the package, the field, and what to do.
func TestSettings_WhatCanNeverWorkIsRefused(t *testing.T) {
	t.Parallel()
	store := must(dedupstore.NewMemory(dedupstore.MemoryConfig{}))(t)
	guard := must(oncemill.NewGuard(store, oncemill.Policy{}))(t)
	once := must(consumer.New(store, consumer.Config{Group: "billing"}))(t)
	pub := noPublisher{}
	var all []wrong
	refused := func(names string, err error) { all = append(all, wrong{names, err}) }

	policy := func(names string, p oncemill.Policy) {
		_, err := oncemill.NewGuard(store, p)
		refused("oncemill: Policy."+names, err)
	}
	policy("Window", oncemill.Policy{Window: -1})
	policy("Window", oncemill.Policy{Window: time.Second, Lease: time.Minute})
	policy("FailureWindow", oncemill.Policy{FailureWindow: -1})
	policy("Lease", oncemill.Policy{Lease: -1})
	policy("Lease", oncemill.Policy{Lease: time.Millisecond})
	policy("Lease", oncemill.Policy{Lease: math.MaxInt64})
	policy("MaxRun", oncemill.Policy{MaxRun: -1})
	policy("MaxAttempts", oncemill.Policy{MaxAttempts: -1})
	policy("Backoff", oncemill.Policy{Backoff: oncemill.Backoff{Min: -1}})
	policy("Backoff", oncemill.Policy{Backoff: oncemill.Backoff{Max: -1}})
	policy("Backoff", oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Hour, Max: time.Second}})
	policy("ExpiredLease", oncemill.Policy{ExpiredLease: "perhaps"})
	policy("StoreDown", oncemill.Policy{StoreDown: "ajar"})
	policy("Mismatch", oncemill.Policy{Mismatch: "perhaps"})
	policy("MissingID", oncemill.Policy{MissingID: "perhaps"})
	policy("MaxResultBytes", oncemill.Policy{MaxResultBytes: -1})
	policy("MaxProducedBytes", oncemill.Policy{MaxProducedBytes: -1})
	policy("StoreDown", oncemill.Policy{StoreDown: oncemill.FailOpen, ExpiredLease: oncemill.Park})
	_, err := oncemill.NewGuard(nil, oncemill.Policy{})
	refused("oncemill: ", err)

	process := func(names string, s dedupstore.Store, c consumer.Config) {
		_, err := consumer.New(s, c)
		refused("consumer: "+names, err)
	}
	process("", nil, consumer.Config{Group: "billing"})
	process("Config.Group", store, consumer.Config{})
	process("Config.Group", store, consumer.Config{Group: "a\nb"})
	process("Config.Group", store, consumer.Config{Group: strings.Repeat("g", 5000)})
	process("Config.Tenant", store, consumer.Config{Group: "billing", Tenant: "\x00"})
	process("Config.MaxWait", store, consumer.Config{Group: "billing", MaxWait: -7})
	process("Config.DeadLetterTopic", store, consumer.Config{Group: "billing", DeadLetters: pub})
	process("Config.DeadLetters", store, consumer.Config{Group: "billing", DeadLetterTopic: "dead"})
	process("Config.Extractors", store, consumer.Config{Group: "billing", Extractors: []producer.Extractor{nil}})
	process("Config.Trace", store, consumer.Config{Group: "billing", Trace: "perhaps"})

	_, err = dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: -1})
	refused("dedupstore: MemoryConfig.", err)

	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { rdb.Close() })
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { ring.Close() })
	for _, c := range []struct {
		names  string
		client redis.UniversalClient
		config redisstore.Config
	}{
		{"redisstore: ", nil, redisstore.Config{}},
		{"redisstore: ", (*redis.Client)(nil), redisstore.Config{}},
		{"redisstore: ", ring, redisstore.Config{}},
		{"redisstore: Config.Prefix", rdb, redisstore.Config{Prefix: "{a}"}},
		{"redisstore: Config.Replicas", rdb, redisstore.Config{Replicas: -1}},
	} {
		_, err := redisstore.New(c.client, c.config)
		refused(c.names, err)
	}

	pool := must(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none"))(t)
	t.Cleanup(pool.Close)
	small := must(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?pool_max_conns=1"))(t)
	t.Cleanup(small.Close)
	for _, c := range []struct {
		names  string
		pool   *pgxpool.Pool
		config pgstore.Config
	}{
		{"pgstore: ", nil, pgstore.Config{}},
		{"pgstore: pool", small, pgstore.Config{}},
		{"pgstore: Config.Table", pool, pgstore.Config{Table: `a"b`}},
		{"pgstore: Config.Schema", pool, pgstore.Config{Schema: "a.b"}},
		{"pgstore: Config.Isolation", pool, pgstore.Config{Isolation: "snapshot"}},
	} {
		_, err := pgstore.New(c.pool, c.config)
		refused(c.names, err)
	}
	for _, c := range []struct {
		names  string
		pool   *pgxpool.Pool
		config pgoutbox.Config
	}{
		{"pgoutbox: ", nil, pgoutbox.Config{}},
		{"pgoutbox: Config.Table", pool, pgoutbox.Config{Table: `a"b`}},
		{"pgoutbox: Config.Schema", pool, pgoutbox.Config{Schema: "a.b"}},
		{"pgoutbox: Config.SkipDead", pool, pgoutbox.Config{SkipDead: true}},
	} {
		_, err := pgoutbox.New(c.pool, c.config)
		refused(c.names, err)
	}

	db := new(sql.DB)
	second := func(_ any, err error) error { return err }
	refused("mysqlstore: db", second(mysqlstore.New(nil, mysqlstore.Config{})))
	refused("mysqlstore: Config.Table", second(mysqlstore.New(db, mysqlstore.Config{Table: "a`b"})))
	refused("mysqloutbox: ", second(mysqloutbox.New(nil, mysqloutbox.Config{})))
	refused("mysqloutbox: Config.Table", second(mysqloutbox.New(db, mysqloutbox.Config{Table: "a`b"})))
	refused("mysqloutbox: Config.SkipDead", second(mysqloutbox.New(db, mysqloutbox.Config{SkipDead: true})))
	refused("sqlitestore: ", second(sqlitestore.New(nil, sqlitestore.Config{})))
	refused("sqlitestore: Config.Table", second(sqlitestore.New(db, sqlitestore.Config{Table: "a`b"})))
	refused("sqliteoutbox: ", second(sqliteoutbox.New(nil, sqliteoutbox.Config{})))
	refused("sqliteoutbox: Config.Table", second(sqliteoutbox.New(db, sqliteoutbox.Config{Table: "a`b"})))
	refused("sqliteoutbox: ", second(sqliteoutbox.Open(t.Context(), "")))
	refused("sqliteoutbox: ", second(sqliteoutbox.Open(t.Context(), ":memory:")))
	refused("dynamostore: ", second(dynamostore.New(nil, dynamostore.Config{})))
	refused("cassandrastore: ", second(cassandrastore.New(nil, cassandrastore.Config{})))

	js := natstest.Start(t).JetStream()
	cons := natstest.Ask(t, "a consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		stream := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}
		if _, err := js.CreateOrUpdateStream(ctx, stream); err != nil {
			return nil, err
		}
		return js.CreateOrUpdateConsumer(ctx, "orders", jetstream.ConsumerConfig{
			Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy,
		})
	})
	refused("natskv: ", second(natskv.New(nil, natskv.Config{})))
	refused("natskv: Config.Bucket", second(natskv.New(js, natskv.Config{Bucket: "a.b"})))
	handle := func(context.Context, jetstream.Msg) error { return nil }
	handleAll := func(context.Context, []jetstream.Msg) []error { return nil }
	named := func(c natsjs.Config) natsjs.Config { c.Handler = "charge"; return c }
	refused("natsjs: ", second(natsjs.NewWorker(nil, js, cons, handle, named(natsjs.Config{}))))
	refused("natsjs: ", second(natsjs.NewWorker(once, nil, cons, handle, named(natsjs.Config{}))))
	refused("natsjs: ", second(natsjs.NewWorker(once, js, nil, handle, named(natsjs.Config{}))))
	refused("natsjs: ", second(natsjs.NewWorker(once, js, cons, nil, named(natsjs.Config{}))))
	for names, c := range map[string]natsjs.Config{
		"Config.Handler is empty": {}, "Config.Handler": {Handler: "~x"}, "Config.MaxInFlight": {Handler: "a", MaxInFlight: -1},
		"Config.Grace": {Handler: "a", Grace: -1}, "Config.Grace is 5ns": {Handler: "a", Grace: 5},
	} {
		refused("natsjs: "+names, second(natsjs.NewWorker(once, js, cons, handle, c)))
	}
	for names, c := range map[string]natsjs.BatchConfig{
		"MaxBatch": {MaxBatch: -1}, "MaxBatchBytes": {MaxBatchBytes: -1}, "Linger": {Linger: -1},
	} {
		c.Config = named(c.Config)
		refused("natsjs: BatchConfig."+names, second(natsjs.NewBatchWorker(once, js, cons, handleAll, c)))
	}
	batches := natsjs.BatchConfig{Config: named(natsjs.Config{})}
	refused("natsjs: ", second(natsjs.NewBatchWorker(once, js, cons, nil, batches)))
	refused("natsjs: ", second(natsjs.NewPublisher(nil, natsjs.PublisherConfig{})))
	refused("natsjs: PublisherConfig.AckTimeout", second(natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: -1})))
	refused("natsjs: PublisherConfig.MaxPending", second(natsjs.NewPublisher(js, natsjs.PublisherConfig{MaxPending: -1})))
	refused("natsjs: ", second(natsjs.NewSource(nil, js, natsjs.SourceConfig{})))

	record := func(context.Context, *kgo.Record) error { return nil }
	records := func(context.Context, []*kgo.Record) []error { return nil }
	refused("franz: ", second(franz.NewWorker(nil, record, franz.Config{Handler: "a"})))
	refused("franz: ", second(franz.NewWorker(once, nil, franz.Config{Handler: "a"})))
	for names, c := range map[string]franz.Config{
		"Handler is empty": {}, "Handler": {Handler: "~x"}, "Order": {Order: "random"}, "MaxInFlight": {MaxInFlight: -1},
		"Grace is -1ns": {Grace: -1}, "Grace is 5ns": {Grace: 5}, "Grace is 300h": {Grace: 300 * time.Hour},
		"CommitEvery":    {CommitEvery: time.Microsecond},
		"Retry[0].Topic": {Retry: []franz.RetryTopic{{Topic: "a b"}}},
		"Retry[0].Delay": {Retry: []franz.RetryTopic{{Topic: "a", Delay: -1}}},
		"Retry[1].Delay": {Retry: []franz.RetryTopic{{Topic: "a", Delay: 2}, {Topic: "b", Delay: 1}}},
		"Retry[1].Topic": {Retry: []franz.RetryTopic{{Topic: "a"}, {Topic: "a"}}},
	} {
		if c.Handler == "" && names != "Handler is empty" {
			c.Handler = "a"
		}
		refused("franz: Config."+names, second(franz.NewWorker(once, record, c)))
	}
	for names, c := range map[string]franz.BatchConfig{
		"MaxBatch": {MaxBatch: -1}, "MaxBatchBytes": {MaxBatchBytes: -1}, "Linger": {Linger: -1},
	} {
		c.Handler = "a"
		refused("franz: BatchConfig."+names, second(franz.NewBatchWorker(once, records, c)))
	}
	refused("franz: ", second(franz.NewPublisher(nil, franz.PublisherConfig{})))
	refused("franz: ", second(franz.NewSource(nil, franz.SourceConfig{})))
	refused("oncewatermill: ", second(oncewatermill.NewSubscriber(nil, "charge")))
	refused("oncewatermill: ", second(oncewatermill.StampDecorator(nil)))
	refused("oncewatermill: ", second(oncewatermill.Chain(oncewatermill.Guarded(nil))))

	box := struct{ outbox.Store }{}
	relay := func(names string, c outbox.Config) {
		refused("outbox: Config."+names, second(outbox.NewRelay(box, pub, c)))
	}
	refused("outbox: ", second(outbox.NewRelay(nil, pub, outbox.Config{})))
	refused("outbox: ", second(outbox.NewRelay(box, nil, outbox.Config{})))
	relay("BatchSize", outbox.Config{BatchSize: -1})
	relay("PollInterval", outbox.Config{PollInterval: -1})
	relay("PublishTimeout", outbox.Config{PublishTimeout: -1})
	relay("Lease", outbox.Config{Lease: -1})
	relay("Lease", outbox.Config{Lease: time.Second, PublishTimeout: time.Minute})
	relay("MaxAttempts", outbox.Config{MaxAttempts: -1})
	relay("Backoff", outbox.Config{Backoff: oncemill.Backoff{Min: time.Hour, Max: time.Second}})
	relay("Retention", outbox.Config{Retention: -7})

	verifier := must(webhook.GitHub("a secret of sixteen bytes"))(t)
	for names, c := range map[string]webhook.Config{
		"Sender": {Verifier: verifier, Topic: "t"}, "Verifier": {Sender: "shop", Topic: "t"},
		"Topic":   {Sender: "shop", Verifier: verifier},
		"MaxBody": {Sender: "shop", Verifier: verifier, Topic: "t", MaxBody: -1},
		"MaxWait": {Sender: "shop", Verifier: verifier, Topic: "t", MaxWait: -7},
	} {
		refused("webhook: Config."+names, second(webhook.New(guard, pub, c)))
	}
	fine := webhook.Config{Sender: "shop", Verifier: verifier, Topic: "t"}
	refused("webhook: ", second(webhook.New(nil, pub, fine)))
	refused("webhook: ", second(webhook.New(guard, nil, fine)))
	refused("webhook: ", second(webhook.Stripe("sk_live_1234567890abcdef")))
	refused("webhook: ", second(webhook.Stripe("")))
	refused("webhook: ", second(webhook.GitHub("short")))
	refused("webhook: ", second(webhook.StandardWebhooks("whsec_no base64!")))

	account := func(*http.Request) (string, error) { return "a", nil }
	refused("idempotencykey: ", second(idempotencykey.New(nil, idempotencykey.Config{Account: account})))
	for names, c := range map[string]idempotencykey.Config{
		"Account": {}, "MaxRequestBody": {Account: account, MaxRequestBody: -1},
		"MaxWait": {Account: account, MaxWait: -7},
	} {
		refused("idempotencykey: Config."+names, second(idempotencykey.New(guard, c)))
	}
	refused("console: Config.Every", second(console.New(console.Config{Every: -1})))
	refused("console: Config.Rate", second(console.New(console.Config{Rate: -1})))
	refused("console: Config.Stores", second(console.New(console.Config{Stores: []console.Store{{Name: "a"}}})))

	for _, w := range all {
		pkg, field, _ := strings.Cut(w.names, ": ")
		switch text := fmt.Sprint(w.err); {
		case w.err == nil:
			t.Errorf("%s: it passes", w.names)
		case !strings.HasPrefix(text, pkg+": "), !strings.Contains(text, field), !remedy.MatchString(text):
			t.Errorf("%s: %s", w.names, text)
		}
	}
	t.Logf("%d wrong settings", len(all))
}

type noPublisher struct{}

func (noPublisher) Publish(context.Context, ...producer.Message) error { return nil }

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
