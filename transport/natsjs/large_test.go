package natsjs_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A slow network brings 20 MB a second.
type slow struct{ net.Dialer }

func (s slow) Dial(network, address string) (net.Conn, error) {
	c, err := s.Dialer.Dial(network, address)
	return slowConn{c}, err
}

type slowConn struct{ net.Conn }

func (c slowConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	lasts(time.Duration(n) * time.Second / 20e6)
	return n, err
}

// More than a server lets be on the way to a connection, in one window, on a slow network: it would cut the connection.
func TestWorker_LargeMessagesDoNotCostTheConnection(t *testing.T) {
	t.Parallel()
	const n = 120
	r := newRig(t, jetstream.ConsumerConfig{}, func(o *server.Options) { o.MaxPending, o.MaxPayload = 12<<20, 1<<20 })
	payload := make([]byte, 200<<10)
	for i := range n {
		if _, err := r.js.Publish(t.Context(), "orders.all", payload, jetstream.WithMsgID(fmt.Sprintf("o%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	var cut atomic.Int32
	r.js = r.server.JetStream(nats.SetCustomDialer(slow{}), nats.DisconnectErrHandler(func(*nats.Conn, error) { cut.Add(1) }))
	var runs atomic.Int32
	stop := r.start(r.worker(func(context.Context, jetstream.Msg) error { runs.Add(1); return nil }))
	until(t, "all messages", func() bool { return runs.Load() == n })
	r.acked(n)
	if info := r.info(); info.Delivered.Consumer != n || cut.Load() != 0 {
		t.Errorf("%d deliveries of %d messages, the connection was cut %d times", info.Delivered.Consumer, n, cut.Load())
	}
	r.stops(stop)
}

// What is larger than a request may bring comes alone.
func TestWorker_MessagesLargerThanARequestMayBeAreTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{MaxRequestMaxBytes: 150}) // of which a subject, an ack's subject and a header take most
	r.config.Window, r.config.Order = 5, natsjs.BySubject
	for i := range 30 {
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
		msg.Data = make([]byte, i%3*100)
		if _, err := r.js.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
	}
	stop := r.start(r.worker(succeed))
	r.finishes(30)
	r.acked(30)
	r.inOrder(30)
	r.stops(stop)
	if n := r.info().Delivered.Consumer; n != 30 {
		t.Errorf("%d deliveries of 30 messages", n)
	}
	if log := r.log.String(); strings.Contains(log, "cannot be fetched") {
		t.Errorf("log:\n%s", log)
	}
}

// The consumer's replicas must know of a delivery before it is made: the word that a request is full overtakes its messages.
func TestWorker_MessagesThatTheirRequestsEndOvertakesAreTaken(t *testing.T) {
	t.Parallel()
	const n = 300
	cluster := testserver.NATSCluster(t, 3)
	r := &rig{t: t, js: cluster.JetStream(), store: newMemory(t), started: map[string]int{}, finished: map[string]int{}}
	testserver.Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) {
		return r.js.CreateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Replicas: 3, Storage: jetstream.MemoryStorage})
	})
	r.cons = testserver.Ask(t, "the consumer", func(ctx context.Context) (jetstream.Consumer, error) {
		return r.js.CreateConsumer(ctx, "orders", jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy, MaxRequestMaxBytes: 4000})
	})
	for i := range n {
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
		msg.Data = make([]byte, 200+i%7*50)
		testserver.Ask(t, "a message in the stream", func(ctx context.Context) (*jetstream.PubAck, error) { return r.js.PublishMsg(ctx, msg) })
	}
	r.config.Window, r.config.Order = 40, natsjs.BySubject
	stop := r.start(r.worker(succeed))
	r.finishes(n)
	r.acked(n)
	r.inOrder(n)
	r.stops(stop)
	if deliveries := r.info().Delivered.Consumer; deliveries != n {
		t.Errorf("%d deliveries of %d messages", deliveries, n)
	}
	if log := r.log.String(); strings.Contains(log, "cannot be fetched") {
		t.Errorf("log:\n%s", log)
	}
}

func newMemory(t *testing.T) dedupstore.Store {
	t.Helper()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}
