package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/extra/redisotel/v9"
	"go.opentelemetry.io/otel"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	errDown  = errors.New("the store is down, as planted")
	lease    = 300 * time.Millisecond
	tooLarge = make([]byte, 16<<10) // for the broker
)

// A moody store fails when it is told to.
type moody struct {
	dedupstore.Store
	claims, settles atomic.Bool // fail
}

func (m *moody) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, m.claimOne)
}

func (m *moody) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if m.claims.Load() {
		return dedupstore.Answer{}, errDown
	}
	return dedupstore.ClaimOne(ctx, m.Store, r)
}

func (m *moody) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, m.extendOne)
}

func (m *moody) extendOne(ctx context.Context, x dedupstore.Extension) error {
	if m.settles.Load() {
		return errDown
	}
	return dedupstore.ExtendOne(ctx, m.Store, x)
}

func (m *moody) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, m.settleOne)
}

func (m *moody) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if m.settles.Load() {
		return errDown
	}
	return dedupstore.SettleOne(ctx, m.Store, c, s)
}

// A shop makes every kind of traffic that a dashboard shows, with faults planted, round after round.
type shop struct {
	t                                 *testing.T
	round                             int
	ill                               *moody // of ailing
	once, ailing, open, lenient, look *consumer.Processor
	last, parks                       *consumer.Processor // give up after one attempt: failed, and unknown
	routed                            *consumer.Processor // in a Router
	publisher                         producer.Publisher
	rows                              *sqliteoutbox.Outbox
	place                             func(context.Context, ...producer.Message) error
}

func newShop(t *testing.T) *shop {
	t.Helper()
	rdb := redistest.Start(t).Client()
	if err := redisotel.InstrumentMetrics(rdb); err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	s := &shop{t: t, ill: &moody{Store: store}}
	down := &moody{Store: store}
	down.claims.Store(true)
	policy := oncemill.Policy{Lease: lease, Backoff: oncemill.Backoff{Min: time.Minute}}
	s.once = s.processor(store, policy)
	s.ailing = s.processor(s.ill, policy)
	policy.MaxProducedBytes = 1
	s.routed = s.processor(store, policy)
	policy.MaxProducedBytes = 0
	policy.MissingID = oncemill.MissingIDBypass
	s.lenient = s.processor(store, policy)
	policy.StoreDown = oncemill.FailOpen
	s.open = s.processor(down, policy)
	s.last = s.processor(store, oncemill.Policy{MaxAttempts: 1})
	s.parks = s.processor(store, oncemill.Policy{ExpiredLease: oncemill.Park})
	s.look = s.processor(store, oncemill.Policy{Shadow: true})
	s.startOutbox()
	return s
}

func (s *shop) processor(store dedupstore.Store, policy oncemill.Policy) *consumer.Processor {
	s.t.Helper()
	policy.Logger = quiet
	p, err := consumer.New(store, consumer.Config{Group: "charge", Policy: policy, MaxWait: 2 * lease, System: "nats"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// startOutbox runs a relay from SQLite to an embedded JetStream that takes no large messages.
func (s *shop) startOutbox() {
	s.t.Helper()
	js := natstest.Start(s.t, func(o *server.Options) { o.MaxPayload = 8 << 10 }).JetStream()
	if _, err := js.CreateStream(s.t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.publisher, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: quiet}); err != nil {
		s.t.Fatal(err)
	}
	s.rows, s.place = newOutbox(s.t)
	runRelay(s.t, s.rows, s.publisher)
}

// newOutbox returns an outbox in SQLite, and what writes messages to it in a transaction each.
func newOutbox(t *testing.T) (*sqliteoutbox.Outbox, func(context.Context, ...producer.Message) error) {
	t.Helper()
	db, err := sqliteoutbox.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	box, err := sqliteoutbox.New(db, sqliteoutbox.Config{})
	if err == nil {
		err = box.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return box, func(ctx context.Context, messages ...producer.Message) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := box.InSQL(tx).Publish(ctx, messages...); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		defer box.Wake()
		return tx.Commit()
	}
}

// runRelay runs a relay until the test ends.
func runRelay(t *testing.T, rows outbox.Store, publisher producer.Publisher) {
	t.Helper()
	relay, err := outbox.NewRelay(rows, publisher, outbox.Config{MaxAttempts: 1, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the relay: %v", err)
		}
	})
}

// deliver gives one copy of a message to a processor, in a trace of its own.
func (s *shop) deliver(p *consumer.Processor, id, payload string, count int, handle consumer.Handler) consumer.Decision {
	ctx, span := otel.Tracer("e2e").Start(s.t.Context(), "deliver")
	defer span.End()
	header := producer.Header{}
	if id != "" {
		header[producer.HeaderID] = id
	}
	return p.Process(ctx, consumer.Delivery{Handler: "charge", Topic: "orders", Header: header, Payload: []byte(payload), Count: count}, handle)
}

func done(context.Context) error { return nil }

// play plays a round: each kind of message and each fault once.
func (s *shop) play() {
	s.round++
	id := func(kind string) string { return fmt.Sprintf("%s-%d", kind, s.round) }

	for count := range 4 { // a redelivery, a retry; the last is answered by the cache
		s.deliver(s.once, id("good"), "x", max(1, 2-count), done)
	}
	s.deliver(s.once, id("good"), "other content", 1, done)
	for range 2 {
		s.deliver(s.once, id("bad"), "x", 1, func(context.Context) error { return oncemill.Permanent(errors.New("planted")) })
		s.deliver(s.ailing, id("later"), "x", 1, func(context.Context) error { return errors.New("planted") }) // then not due
	}
	s.deliver(s.last, id("spent"), "x", 1, func(context.Context) error { return errors.New("planted") })
	s.deliver(s.parks, id("parked"), "x", 1, func(context.Context) error { return errors.New("planted") })
	s.deliver(s.once, "", "x", 1, done)
	s.deliver(s.lenient, "", "x", 1, done)
	s.deliver(s.open, id("open"), "x", 1, done)
	s.deliver(s.look, id("shadow"), "x", 1, done)
	s.large(id("large"))
	s.takeover(id("lost"))
	s.orders(id)
	if s.round == 3 { // what is there by then keeps its labels
		for i := range maxSets {
			s.deliverTo(fmt.Sprintf("handler-%d", i), id("many"))
		}
	}
}

// takeover has a holder whom the store does not answer any more, so that another one takes over while it still works.
func (s *shop) takeover(id string) {
	s.ill.settles.Store(false)
	started, taken, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		s.deliver(s.ailing, id, "x", 1, func(context.Context) error {
			s.ill.settles.Store(true)
			close(started)
			<-taken // it does not obey its context
			return nil
		})
	}()
	select {
	case <-started:
	case <-ended: // it has not run: a claim may time out, for one. Another round will do
		return
	}
	release := sync.OnceFunc(func() {
		s.ill.settles.Store(false)
		close(taken)
	})
	s.deliver(s.once, id, "x", 2, func(context.Context) error {
		release()
		<-ended
		return nil
	})
	release() // the lease outlasted its hold: another round will do
	<-ended
	s.renew(id + "-slow")
}

// A round of traffic ends, whatever fails in it.
func TestShop_TakeoverEndsIfTheFirstClaimFails(t *testing.T) {
	s := newShop(t)
	s.round = 1
	s.ill.claims.Store(true)
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.takeover("lost")
	}()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Error("takeover waits for a handler that does not run")
	}
}

// renew has a handler that takes longer than a heartbeat's pause.
func (s *shop) renew(id string) {
	s.deliver(s.once, id, "x", 1, func(context.Context) error {
		<-time.After(lease / 2)
		return nil
	})
}

// large is a run whose outputs do not fit into its record.
func (s *shop) large(id string) {
	d := s.routed.ProcessOutputs(s.t.Context(), consumer.Delivery{Handler: "print", Topic: "orders", UUID: id, Payload: []byte("x")},
		func(context.Context) ([]producer.Message, error) {
			return []producer.Message{{Topic: "prints", Payload: []byte("more than a byte")}}, nil
		})
	if d.Action != consumer.Ack || d.Result.Publication == nil {
		s.t.Errorf("a run with large outputs: %+v", d)
		return
	}
	if err := d.Result.Publication.Done(); err != nil {
		s.t.Errorf("the end of a run with large outputs: %v", err)
	}
}

// orders go through the outbox: a good one, and one that the broker refuses. Another one is published past it, twice.
func (s *shop) orders(id func(string) string) {
	ctx, span := otel.Tracer("e2e").Start(s.t.Context(), "place order")
	defer span.End()
	if err := s.place(ctx, producer.Message{ID: id("order"), Topic: "orders.placed", Payload: []byte("x")},
		producer.Message{ID: id("refused"), Topic: "orders.placed", Payload: tooLarge}); err != nil {
		s.t.Errorf("write the outbox: %v", err)
	}
	for range 2 {
		if err := s.publisher.Publish(ctx, producer.Message{ID: id("twice"), Topic: "orders.placed", Payload: []byte("x")}); err != nil {
			s.t.Errorf("publish: %v", err)
		}
	}
}

func (s *shop) deliverTo(handler, id string) {
	s.once.Process(s.t.Context(), consumer.Delivery{
		Handler: handler, Topic: "orders", Header: producer.Header{producer.HeaderID: id}, Payload: []byte("x"),
	}, done)
}
