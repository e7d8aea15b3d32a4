package natsjs_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// If a message is over the limit of a request's bytes, the server does not send it at all.
func TestWorker_TheLastOfEachSubjectIsTakenHoweverLarge(t *testing.T) {
	t.Parallel()
	const n = 60
	r := newRig(t, jetstream.ConsumerConfig{})
	r.publishLarge(n, 300<<10, func(i int) string { return fmt.Sprint(i) })
	if err := r.js.DeleteConsumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	r.open(jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: "orders.>"})
	stop := r.start(r.worker(succeed))
	r.finishes(n)
	r.acked(n)
	r.stops(stop)
}

// If a message is over the limit of a request's bytes, the server sends it behind the others that come again.
func TestWorker_LargeMessagesComeAgainInTheirOrder(t *testing.T) {
	t.Parallel()
	const n = 60
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 3 * time.Second}) // more than the fetch takes
	r.publishLarge(n, 300<<10, oneKey)
	batch, err := r.cons.Fetch(n)
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for range batch.Messages() {
		got++
	}
	if got != n {
		t.Fatalf("%d messages fetched: %v", got, batch.Error())
	}
	lasts(4 * time.Second) // and all are to come again
	r.config.Order = natsjs.BySubject
	stop := r.start(r.worker(succeed))
	r.finishes(n)
	r.acked(n)
	r.inOrder(n)
	r.stops(stop)
}

// publishLarge is publish with so many bytes.
func (r *rig) publishLarge(n, size int, key func(i int) string) {
	r.t.Helper()
	for i := range n {
		msg := nats.NewMsg("orders." + key(i))
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
		msg.Data = make([]byte, size)
		if _, err := r.js.PublishMsg(r.t.Context(), msg); err != nil {
			r.t.Fatal(err)
		}
	}
}
