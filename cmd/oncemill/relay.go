package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A relaying is what a relay does, as flags.
type relaying struct {
	outbox.Config
	listen string
}

func (a *app) relay() *cobra.Command {
	var r relaying
	cmd := &cobra.Command{
		Use:     "relay",
		GroupID: "run",
		Short:   "Publish the rows of an outbox, until it is told to stop",
		Long: `Publish the rows of the outbox that --outbox names, to NATS JetStream or to
Kafka, until SIGTERM or an interrupt. Then it waits up to 10 s for what is being
published, gives back the rest, and exits with status 0. Any number of relays
may share an outbox.

It waits for a database or a broker that is away, and for "oncemill migrate".
On --listen it answers /healthz as long as it runs, and /readyz with status 200
if it reaches the outbox and the broker, else with 503 and why. /metrics is for
Prometheus. With OTEL_EXPORTER_OTLP_ENDPOINT, or another of OpenTelemetry's
variables for OTLP over HTTP, it sends metrics and traces there. The log is
JSON, on stderr.`,
		Example: "  oncemill relay --outbox postgres://app@127.0.0.1/shop --nats nats://127.0.0.1\n" +
			"  oncemill relay --outbox sqlite:/var/lib/shop.db --kafka 127.0.0.1:9092",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := r.check(); err != nil {
				return err
			}
			kafka, err := a.onKafka(cmd.Flags())
			if err != nil {
				return err
			}
			return a.relays(cmd.Context(), r, kafka)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&r.listen, "listen", "127.0.0.1:9464", "where to answer; off: nowhere")
	flags.IntVar(&r.BatchSize, "batch", 1000, "publish so many rows together at most")
	flags.DurationVar(&r.PollInterval, "poll", time.Second, "look for new rows so often")
	flags.DurationVar(&r.PublishTimeout, "publish-timeout", 30*time.Second, "how long a batch may take")
	flags.DurationVar(&r.Lease, "lease", time.Minute, "when others take over the rows of a dead relay")
	flags.DurationVar(&r.Retention, "retention", 24*time.Hour, "keep published rows so long; 0s: not at all.\n"+
		"Dedup windows must be twice as long")
	return cmd
}

// check refuses what would mean a default.
func (r *relaying) check() error {
	if r.BatchSize < 1 {
		return usagef("--batch is %d, want at least 1", r.BatchSize)
	}
	for name, d := range map[string]time.Duration{
		"--poll": r.PollInterval, "--publish-timeout": r.PublishTimeout, "--lease": r.Lease,
	} {
		if d <= 0 {
			return usagef("%s is %v, want more than 0s", name, d)
		}
	}
	switch {
	case r.Retention < 0:
		return usagef("--retention is %v, want at least 0s", r.Retention)
	case r.Retention == 0:
		r.Retention = outbox.DeleteAtOnce
	}
	return nil
}

// relays relays until stopping ends.
func (a *app) relays(stopping context.Context, r relaying, kafka bool) error {
	a.logger = slog.New(slog.NewJSONHandler(a.log, nil))
	r.Logger = a.logger
	seen, err := observe(stopping, "oncemill-relay", a.logger)
	if err != nil {
		return err
	}
	defer seen.end(stopping)
	r.Telemetry = seen.Telemetry
	publisher, broker, err := a.publisher(kafka, seen.Telemetry)
	if err != nil {
		return err
	}
	ready := newReadiness(a.logger)
	ctx, stop := context.WithCancelCause(stopping)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop(nil)
	if r.listen != "off" {
		hangUp, err := a.answer(ctx, r.listen, ready, seen.scraped, stop)
		if err != nil {
			return err
		}
		defer hangUp()
	}
	opened, err := a.await(ctx, ready)
	if err != nil || opened == nil {
		return err
	}
	relay, err := outbox.NewRelay(opened.(outbox.Store), publisher, r.Config)
	if err != nil {
		return usageError{err}
	}
	if pg, ok := opened.(interface{ Listen(context.Context) error }); ok {
		beside.Go(func() { _ = pg.Listen(ctx) }) // it logs its errors, and ends with ctx
	}
	beside.Go(func() { ready.watch(ctx, opened, broker) })
	a.logger.InfoContext(ctx, "relay: started")
	if err := relay.Run(ctx); err != nil {
		return err
	}
	a.logger.InfoContext(ctx, "relay: stopped")
	if stopping.Err() == nil {
		return context.Cause(ctx)
	}
	return nil
}

// publisher makes the publisher for a broker, which may be away, and says how to find out whether it is.
func (a *app) publisher(kafka bool, t oncemill.Telemetry) (
	p producer.Publisher, look func(context.Context) error, err error,
) {
	if kafka {
		cl, err := a.kafka(append(franz.PublisherOpts(), kgo.WithLogger(kafkaLog{a.logger}))...)
		if err != nil {
			return nil, nil, err
		}
		p, err = franz.NewPublisher(cl, franz.PublisherConfig{Telemetry: t})
		return p, cl.Ping, err
	}
	js, err := a.jetStream(nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			a.logger.Warn("relay: NATS", "error", err)
		}))
	if err != nil {
		return nil, nil, err
	}
	p, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: a.logger, Telemetry: t})
	return p, func(ctx context.Context) error {
		if status := js.Conn().Status(); status != nats.CONNECTED {
			return fmt.Errorf("the connection to NATS is %s", strings.ToLower(status.String()))
		}
		return js.Conn().FlushWithContext(ctx)
	}, err
}

// A kafkaLog is where a client of Kafka says what is wrong.
type kafkaLog struct{ to *slog.Logger }

// Level implements kgo.Logger: less would hide why a broker cannot be reached.
func (kafkaLog) Level() kgo.LogLevel { return kgo.LogLevelInfo }

// Log implements kgo.Logger.
func (l kafkaLog) Log(level kgo.LogLevel, text string, more ...any) {
	severity := slog.LevelInfo
	switch level {
	case kgo.LogLevelError:
		severity = slog.LevelError
	case kgo.LogLevelWarn:
		severity = slog.LevelWarn
	}
	l.to.Log(context.Background(), severity, "relay: Kafka: "+text, more...)
}

const (
	lookEvery     = time.Second // how often a relay looks whether it reaches its servers
	outboxTimeout = 10 * time.Second
	brokerTimeout = 2 * time.Second
)

// await opens the outbox as soon as its database is there and has its tables. Nil: ctx has ended before.
func (a *app) await(ctx context.Context, ready *readiness) (box, error) {
	for {
		tried := &app{settings: a.settings, logger: a.logger}
		opened, err := tried.migrated(ctx)
		if err == nil {
			a.closers = append(a.closers, tried.close)
			return opened, nil
		}
		tried.close()
		if usage, invalid := (usageError{}), (*dedupstore.InvalidError)(nil); errors.As(err, &usage) ||
			errors.As(err, &invalid) { // such as skip_dead=true of an outbox that is not ordered
			return nil, err
		}
		ready.set(fmt.Errorf("outbox: %w", err))
		if !pace.Sleep(ctx, lookEvery) {
			return nil, nil // it was told to stop
		}
	}
}

// migrated opens the outbox if its tables are there: before that, nobody knows whether it is ordered.
func (a *app) migrated(ctx context.Context) (box, error) {
	opened, err := a.reachBox(ctx, false)
	if err != nil {
		return nil, err
	}
	plan, err := opened.Plan(ctx)
	if err != nil {
		return nil, err
	}
	if plan.Found < plan.Wanted {
		return nil, errors.New("its tables are missing or old: run oncemill migrate, or name their ?schema= and " +
			"?table= in --outbox")
	}
	return opened, nil
}

// A readiness is whether a relay reaches its servers.
type readiness struct {
	log     *slog.Logger
	problem atomic.Pointer[string] // empty: none
}

func newReadiness(log *slog.Logger) *readiness {
	r := &readiness{log: log}
	r.say("starting")
	return r
}

func (r *readiness) say(problem string) { r.problem.Store(&problem) }

// set logs what has changed.
func (r *readiness) set(err error) {
	var problem string
	if err != nil {
		problem = oneLine(err)
	}
	switch before := *r.problem.Swap(&problem); problem {
	case before:
	case "":
		r.log.Info("relay: ready")
	default:
		r.log.Warn("relay: not ready", "why", problem)
	}
}

// watch looks at both servers until ctx ends.
func (r *readiness) watch(ctx context.Context, opened box, broker func(context.Context) error) {
	for ctx.Err() == nil {
		var noOutbox, noBroker error
		var both sync.WaitGroup
		both.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, outboxTimeout)
			defer cancel()
			_, noOutbox = opened.Plan(ctx) // which costs the same with any backlog
		})
		both.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
			defer cancel()
			noBroker = broker(ctx)
		})
		both.Wait()
		switch {
		case ctx.Err() != nil:
		case noOutbox != nil:
			r.set(fmt.Errorf("outbox: %w", noOutbox))
		case noBroker != nil:
			r.set(fmt.Errorf("broker: %w", noBroker))
		default:
			r.set(nil)
		}
		pace.Sleep(ctx, lookEvery)
	}
	r.say("stopping")
}

// answer answers probes until it is closed, and stops the relay if it cannot any more.
func (a *app) answer(
	ctx context.Context, at string, ready *readiness, metrics http.Handler, stop context.CancelCauseFunc,
) (closed func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if problem := *ready.problem.Load(); problem != "" {
			http.Error(w, problem, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("--listen: %w", err))
		}
	}()
	a.logger.InfoContext(ctx, "relay: listens", "address", l.Addr().String())
	return func() {
		_ = server.Close()
		<-ended
	}, nil
}
