package natsjs_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// withPassword has the server let "app" in with a password, and everybody else as somebody who may do all.
func withPassword(password string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "admin"}, {Username: "app", Password: password}}
		o.NoAuthUser = "admin"
	}
}

// asApp has the rig's consumer on a connection that shows the first password.
func (r *rig) asApp(options ...nats.Option) {
	r.t.Helper()
	options = append(options, nats.UserInfo("app", "first"), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	r.js = r.server.JetStream(options...)
	cons, err := r.js.Consumer(r.t.Context(), "orders", "billing")
	if err != nil {
		r.t.Fatal(err)
	}
	r.cons = cons
}

// Requests for messages tell nothing of it: while there is no connection none is made, and the last has brought messages.
func TestWorker_SaysWhyTheServerDoesNotLetItIn(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}, withPassword("first"))
	r.asApp(nats.IgnoreAuthErrorAbort())
	r.publish(1, oneKey)
	stop := r.start(r.worker(succeed))
	pub, err := natsjs.NewPublisher(r.js, natsjs.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r.finishes(1)
	r.server.RestartWith(withPassword("second"))
	const line, reason = "natsjs: no connection to the server; trying again", "Authorization Violation"
	until(t, "the line and its reason", func() bool {
		return strings.Contains(r.log.String(), line) && strings.Contains(r.log.String(), reason)
	})
	m := producer.Message{ID: "o1", Topic: "orders.all", Payload: []byte("x")}
	if err := pub.Publish(t.Context(), m); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("the publisher says: %v", err)
	}
	r.server.RestartWith(withPassword("first"))
	until(t, "a message", func() bool { return pub.Publish(t.Context(), m) == nil })
	r.finishes(2)
	until(t, "a line that it is over", func() bool { return strings.Contains(r.log.String(), "messages can be fetched again") })
	r.stops(stop)
	if log := r.log.String(); strings.Count(log, line) != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestWorker_SaysWhyTheConnectionIsClosedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}, withPassword("first"))
	r.asApp()
	r.publish(1, oneKey)
	ended := make(chan error, 1)
	w := r.worker(succeed)
	go func() { ended <- w.Run(context.Background()) }()
	r.finishes(1)
	r.server.RestartWith(withPassword("second"))
	if err := await(t, ended); err == nil || !strings.Contains(err.Error(), "Authorization Violation") {
		t.Errorf("Run: %v", err)
	}
}

// Why the client was away is not why nothing comes when it is back.
func TestWorker_SaysAfterAnOutageWhatIsWrongThen(t *testing.T) {
	t.Parallel()
	r := newRig(t, jetstream.ConsumerConfig{}, withPassword("first"))
	r.asApp(nats.IgnoreAuthErrorAbort())
	r.publish(1, oneKey)
	stop := r.start(r.worker(succeed))
	r.finishes(1)
	r.server.RestartWith(withPassword("second"))
	until(t, "the first line", func() bool { return strings.Contains(r.log.String(), "natsjs: no connection to the server") })
	before := len(r.log.String())
	r.server.RestartWith(func(o *server.Options) {
		withPassword("first")(o)
		o.JetStream = false
	})
	until(t, "the second line", func() bool {
		return strings.Contains(r.log.String()[before:], "natsjs: messages cannot be fetched")
	})
	r.server.Reload(func(o *server.Options) { o.JetStream = true })
	r.publish(2, oneKey)
	r.finishes(2)
	r.stops(stop)
	if n := strings.Count(r.log.String()[before:], "natsjs: messages cannot be fetched"); n != 1 {
		t.Errorf("%d lines", n)
	}
}
