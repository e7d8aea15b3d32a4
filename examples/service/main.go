// The service example is a whole service, to be copied:
//
//	client ─POST /orders─► order + event ─relay─► worker: charge + receipt ─relay─► Watermill Router ─► bank
//
// An order, its event and the response to its Idempotency-Key are one transaction in PostgreSQL. So are a charge, its
// receipt and the outcome of its message: nothing is charged twice, whatever crashes. The bank's effects are elsewhere.
// A leased claim guards the call, and Run.ID is its idempotency key. docs/production.md explains sizes and order.
//
// It uses PostgreSQL and NATS of compose.yaml. With -embedded FOLDER NATS runs in this process.
//
//	docker compose up -d --wait
//	go run ./examples/service
//	curl -i -H 'Idempotency-Key: 1' -d '{"customer":"ann","cents":1200}' http://127.0.0.1:8080/orders
//
// Probes, metrics, the console and a stub of the bank are at http://127.0.0.1:8081/console/.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/examples/internal/observe"
	"github.com/oncemill/oncemill/examples/internal/parts"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/producer/idempotencykey"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// How much is done at once. A process opens up to 40 connections to PostgreSQL. In a rolling update there are two, and
// max_connections is 100.
const (
	handlerConns = 24 // of the inbox: 18 for transactions, the rest for claims and heartbeats
	charging     = 12 // messages, with a transaction each; the other 6 are for requests
	requests     = 64 // most of them wait for a transaction; what is beyond gets 503
	otherConns   = 16 // 8 of the relay; claims of transfers, probes, the console
	transferring = 32 // messages: calls of the bank
)

// options are the flags.
type options struct {
	listen, admin, bank      string
	postgres, nats, embedded string
	lease                    time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "127.0.0.1:8080", "take orders at this `address`")
	flag.StringVar(&o.admin, "admin", "127.0.0.1:8081", "answer probes at this `address`, which clients do not reach")
	flag.StringVar(&o.bank, "bank", "", "transfer at this `URL`; empty: a stub in here, at -admin")
	flag.StringVar(&o.postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep everything at this `URL`")
	flag.StringVar(&o.nats, "nats", "nats://127.0.0.1:4222", "use the NATS JetStream server at this `URL`")
	flag.StringVar(&o.embedded, "embedded", "", "run NATS in here instead, with its files in this `folder`")
	flag.DurationVar(&o.lease, "lease", 30*time.Second, "how long the work of a process that died waits")
	flag.Parse()
	if o.embedded != "" {
		o.nats = ""
	}
	o.bank = cmp.Or(o.bank, "http://"+o.admin)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, o); err != nil {
		slog.Error("the service has failed", "error", err)
		os.Exit(1)
	}
}

// run runs the service until ctx ends or a part of it breaks.
func run(ctx context.Context, o options) (err error) {
	// Telemetry comes before the first message.
	metrics, err := prometheus.New()
	if err != nil {
		return err
	}
	stopTelemetry, err := observe.Start(ctx, "service", metrics)
	if err != nil {
		return err
	}
	defer stopTelemetry(ctx)

	// PostgreSQL. Handlers keep a connection each while they run, and nothing else must wait for those.
	handlers, err1 := openPool(ctx, o.postgres, handlerConns)
	others, err2 := openPool(ctx, o.postgres, otherConns)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	defer handlers.Close()
	defer others.Close()
	inbox, err1 := pgstore.New(handlers, pgstore.Config{}) // for effects in this database
	leased, err2 := pgstore.New(others, pgstore.Config{})  // for effects elsewhere; the table is the same
	box, err3 := pgoutbox.New(others, pgoutbox.Config{})   // writes in the transactions of inbox
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := makeTables(ctx, others, leased, box); err != nil {
		return shop.NoServer("postgres", shop.Redacted(o.postgres), err)
	}

	// NATS.
	js, closeNATS, err := shop.OpenNATS(o.nats, o.embedded)
	if err != nil {
		return err
	}
	defer closeNATS()
	placements, receipts, err := makeStreams(ctx, js, o.lease)
	if err != nil {
		return err
	}

	// The parts. Group and names of handlers are data: under other names everything would run again.
	pub, err1 := natsjs.NewPublisher(js, natsjs.PublisherConfig{})
	policy := oncemill.HighValue() // outcomes are known for a week, longer than streams and outbox keep messages
	policy.Lease = o.lease
	guarded := consumer.Config{Group: "shop", Policy: policy, DeadLetters: pub, DeadLetterTopic: dead}
	guard, err2 := oncemill.NewGuard(inbox.Inbox(), policy)
	chargeOnce, err3 := consumer.New(inbox.Inbox(), guarded)
	transferOnce, err4 := consumer.New(leased, guarded)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	keys, err1 := idempotencykey.New(guard, idempotencykey.Config{
		Account: idempotencykey.SingleTenant, // yours comes from authentication
		Release: idempotencykey.ServerErrors, // they were rolled back: a repeat runs again
	})
	worker, err2 := natsjs.NewWorker(chargeOnce, js, placements, charge(box), natsjs.Config{
		Handler: "charge", MaxInFlight: charging,
	})
	api := bank.NewClient(o.bank, transferring)
	defer api.Close()
	router, err3 := transferRouter(transferOnce, js, receipts, api)
	relay, err4 := outbox.NewRelay(box, pub, outbox.Config{
		PollInterval:   100 * time.Millisecond, // charge cannot wake the relay: its transaction commits after it
		PublishTimeout: o.lease / 3, Lease: o.lease,
	})
	screens, err5 := console.New(console.Config{
		Authorize: console.ViewOnly, // on an internal address: see docs/production.md
		Stores:    []console.Store{{Name: "records", Inspector: leased}},
		Outboxes:  []console.Outbox{{Name: "shop", Inspector: box}},
	})
	public, err6 := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	admin, err7 := new(net.ListenConfig).Listen(ctx, "tcp", o.admin)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		return err
	}

	// They start in this order, and stop in the reverse one, each when the one before has ended: no part ends before
	// those that give it work.
	service := parts.New(ctx)
	var ready atomic.Bool
	service.Start("admin", parts.HTTP(admin, probes(&ready, others, screens)))
	service.Start("console", screens.Run)
	service.Start("cleaning", leased.RunCleaning)
	service.Start("relay", relay.Run)
	service.Start("transfer", router.Run)
	service.Start("charge", worker.Run)
	service.Start("orders", parts.HTTP(public, takeOrders(keys, box)))
	ready.Store(true)
	slog.Info("taking orders", "at", o.listen, "console", "http://"+o.admin+"/console/")
	<-service.Done()
	ready.Store(false)
	return errors.Join(service.Stop(), transferOnce.Close(context.WithoutCancel(ctx)))
}

// tables are the service's own. No unique index of charges would notice a second one: that is the inbox's work. Numbers
// of runs that were rolled back are not given again. Processes that start together take turns.
const tables = `
	SELECT pg_advisory_xact_lock(hashtextextended('shop', 0));
	CREATE TABLE IF NOT EXISTS orders (
		number bigint GENERATED ALWAYS AS IDENTITY, id text PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL);
	CREATE TABLE IF NOT EXISTS charges (
		number bigint GENERATED ALWAYS AS IDENTITY, "order" text NOT NULL, cents bigint NOT NULL)`

// makeTables makes what is missing. If programs of yours may not create tables, do it before you deploy them.
func makeTables(ctx context.Context, db *pgxpool.Pool, store *pgstore.Store, box *pgoutbox.Outbox) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := db.Exec(ctx, tables); err != nil {
		return err
	}
	if err := errors.Join(store.Migrate(ctx), box.Migrate(ctx)); err != nil {
		return err
	}
	report, err := store.Check(ctx) // whether the server keeps what it confirms
	for _, warning := range report.Warnings {
		slog.WarnContext(ctx, "PostgreSQL", "warning", warning)
	}
	return err
}

func openPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, shop.NoServer("postgres", shop.Redacted(url), err)
	}
	cfg.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, cfg)
}

// The subjects.
const (
	placed  = "shop.placed"
	charged = "shop.charged"
	dead    = "dead.shop"
)

// makeStreams makes streams and consumers. docs/brokers.md says what else yours need, such as replicas.
func makeStreams(
	ctx context.Context, js jetstream.JetStream, lease time.Duration,
) (placements, receipts jetstream.Consumer, err error) {
	_, err1 := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "SHOP", Subjects: []string{placed, charged}, MaxAge: 3 * 24 * time.Hour,
	})
	_, err2 := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "SHOP-DEAD", Subjects: []string{dead}})
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, fmt.Errorf("make the streams: %w", err)
	}
	config := jetstream.ConsumerConfig{
		AckPolicy:  jetstream.AckExplicitPolicy,
		AckWait:    lease, // workers extend it: so long a dead one's messages wait
		MaxDeliver: -1,    // the guard counts attempts
	}
	config.Durable, config.FilterSubject = "charge", placed
	placements, err1 = js.CreateOrUpdateConsumer(ctx, "SHOP", config)
	config.Durable, config.FilterSubject = "transfer", charged
	receipts, err2 = js.CreateOrUpdateConsumer(ctx, "SHOP", config)
	return placements, receipts, errors.Join(err1, err2)
}

func transferRouter(
	once *consumer.Processor, js jetstream.JetStream, receipts jetstream.Consumer, api *bank.Client,
) (*message.Router, error) {
	source, err := natsjs.NewSource(once, js, natsjs.SourceConfig{
		Config:   natsjs.Config{MaxInFlight: transferring},
		Consumer: func(context.Context, string) (jetstream.Consumer, error) { return receipts, nil },
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return nil, err
	}
	oncewatermill.AddConsumerHandler(router, once, "transfer", charged, source, transfer(api))
	return router, nil
}

// probes answers those who operate the service.
func probes(ready *atomic.Bool, db *pgxpool.Pool, screens *console.Console) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if !ready.Load() || db.Ping(ctx) != nil { // without NATS orders are taken: their events wait in the outbox
			http.Error(w, "starting, stopping, or without PostgreSQL", http.StatusServiceUnavailable)
			return
		}
	})
	mux.Handle("GET /metrics", promhttp.Handler())
	mux.Handle("/console/", screens.Handler())
	mux.Handle("POST /transfers", bank.NewStub(10))
	return mux
}
