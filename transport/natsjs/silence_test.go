package natsjs_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A sluggish network hands on what comes from the server when nobody locks it.
type sluggish struct {
	net.Dialer
	sync.RWMutex
}

func (s *sluggish) Dial(network, address string) (net.Conn, error) {
	c, err := s.Dialer.Dial(network, address)
	return &sluggishConn{c, s}, err
}

type sluggishConn struct {
	net.Conn
	network *sluggish
}

func (c *sluggishConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.network.RLock()
	defer c.network.RUnlock()
	return n, err
}

// The network, or this process, stands still for longer than a request for messages lasts. Messages that the server has
// sent come then, and before later ones.
func TestWorker_MessagesThatAreLongOnTheirWayAreTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{AckWait: 8 * time.Second})
	others, network := r.js, &sluggish{}
	r.js = r.server.JetStream(nats.SetCustomDialer(network))
	r.open(jetstream.ConsumerConfig{AckWait: 8 * time.Second})
	r.config.Order = natsjs.BySubject
	stop := r.start(r.worker(succeed))
	publish := func(from, to int) {
		for i := from; i < to; i++ {
			msg := nats.NewMsg("orders.all")
			msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", i))
			if _, err := others.PublishMsg(t.Context(), msg); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(0, 1)
	r.finishes(1)
	network.Lock()
	publish(1, 5)
	lasts(3500 * time.Millisecond)
	publish(5, 10)
	network.Unlock()
	r.finishes(10)
	r.acked(10)
	r.inOrder(10)
	if n := r.info().Delivered.Consumer; n != 10 {
		t.Errorf("%d deliveries of 10 messages", n)
	}
	r.stops(stop)
}
