package faults_test

import (
	"context"
	"math/rand/v2"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgoutbox"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A relayJob is what a relay in a process of its own is to do.
type relayJob struct {
	Relay      int      // its number, which no other process has
	DSN        string   // of the database
	URLs       []string // of NATS
	Log        string   // a file: see ledger.Relay
	Ordered    bool
	Config     outbox.Config
	AckTimeout time.Duration
	Linger     time.Duration // at random up to this long the relay does not hear an answer that came, so that faults meet it there
}

// TestOutbox_RelayProcess is no test, but what other tests run in processes of their own, which get a job as their
// argument. The process works until SIGTERM, and fails if a goroutine is left in the end: see TestMain.
func TestOutbox_RelayProcess(t *testing.T) {
	j := taskOf[relayJob](t)
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	if err := j.run(ctx, t); err != nil {
		t.Error(err)
	}
}

// arguments are those of a process that does the job.
func (j relayJob) arguments(t *testing.T) []string {
	return taskArguments(t, "TestOutbox_RelayProcess", j)
}

// run relays until ctx ends. Servers may be away, also in the beginning.
func (j relayJob) run(ctx context.Context, t *testing.T) error {
	cfg, err := pgxpool.ParseConfig(j.DSN)
	if err != nil {
		return err
	}
	cfg.MaxConns = 4 // of many relays
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	box, err := pgoutbox.New(pool, pgoutbox.Config{Ordered: j.Ordered})
	if err != nil {
		return err
	}
	nc, err := nats.Connect(strings.Join(j.URLs, ","), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	publisher, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: j.AckTimeout})
	if err != nil {
		return err
	}
	notes := ledger.KeepRelay(t, j.Relay, j.Log, func() { lasts(rand.N(j.Linger + 1)) })
	relay, err := outbox.NewRelay(notes.Store(box), notes.Publisher(publisher), j.Config)
	if err != nil {
		return err
	}
	return relay.Run(ctx)
}
