package natsjs_test

import (
	"errors"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// What nats.go says of it by itself is that no ack came in time, that a buffer is full, or that the server takes no headers.
func TestPublisher_SaysForAsLongAsItLastsThatThereIsNoConnection(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]nats.Option{
		"with a buffer":    nil,
		"without a buffer": {nats.ReconnectBufSize(-1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, natsjs.PublisherConfig{})
			nc := b.server.Connect(append(options, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))...)
			pub := publisherOn(t, nc)
			acknowledges(t, pub)
			b.server.Shutdown()
			until(t, "the connection to break", func() bool { return !nc.IsConnected() })
			saysNoConnection(t, pub)
			b.server.Restart()
			acknowledges(t, pub)
		})
	}
	t.Run("that never was", func(t *testing.T) {
		t.Parallel()
		port, err := testserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect("nats://"+net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		pub := publisherOn(t, nc)
		saysNoConnection(t, pub)
		server := natstest.Start(t, func(o *server.Options) { o.Port = port })
		if _, err := server.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}}); err != nil {
			t.Fatal(err)
		}
		acknowledges(t, pub)
	})
}

func publisherOn(t *testing.T, nc *nats.Conn) *natsjs.Publisher {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

// acknowledges waits for an acknowledgement: on a busy machine it may come later than AckTimeout.
func acknowledges(t *testing.T, pub *natsjs.Publisher) {
	t.Helper()
	until(t, "an acknowledgement", func() bool { return pub.Publish(t.Context(), orders(1)...) == nil })
}

func saysNoConnection(t *testing.T, pub *natsjs.Publisher) {
	t.Helper()
	for range 3 {
		f := failuresOf(t, pub.Publish(t.Context(), orders(1)...))[0]
		if !f.Unknown || !errors.Is(f.Err, nats.ErrDisconnected) || errors.Is(f.Err, nats.ErrHeadersNotSupported) {
			t.Errorf("unknown %v, error %v: want it to say that there is no connection", f.Unknown, f.Err)
		}
		t.Log(f.Err)
	}
}
