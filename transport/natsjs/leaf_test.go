package natsjs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// leafed is a rig of a hub, with a leaf node to which its workers connect.
func leafed(t *testing.T, c jetstream.ConsumerConfig, dialer *stallingDialer) (r *rig, hub jetstream.JetStream) {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r = newRig(t, c, func(o *server.Options) {
		o.JetStreamDomain = "hub"
		o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
	})
	leaf := natstest.Start(t, func(o *server.Options) {
		o.JetStream = false
		o.LeafNode.ReconnectInterval = 50 * time.Millisecond
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}}}
	})
	hub = r.js
	if r.js, err = jetstream.NewWithDomain(leaf.Connect(nats.SetCustomDialer(dialer)), "hub"); err != nil {
		t.Fatal(err)
	}
	r.look()
	return r, hub
}

// look finds the consumer, once the server can be reached.
func (r *rig) look() {
	r.t.Helper()
	until(r.t, "the consumer", func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		cons, err := r.js.Consumer(ctx, "orders", "billing")
		if err == nil {
			r.cons = cons
		}
		return err == nil
	})
}

// A stallingDialer holds up what its connections send from the first ack on.
type stallingDialer struct {
	mu      sync.Mutex
	release chan struct{} // nil: nothing is held up
}

func (h *stallingDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, longWait)
	return stallingConn{c, h}, err
}

// stall begins that, and returns what ends it.
func (h *stallingDialer) stall() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stalled := make(chan struct{})
	h.release = stalled
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.release = nil
		close(stalled)
	})
}

type stallingConn struct {
	net.Conn
	dialer *stallingDialer
}

func (c stallingConn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("$JS.ACK.")) {
		c.dialer.mu.Lock()
		stalled := c.dialer.release
		c.dialer.mu.Unlock()
		if stalled != nil {
			<-stalled
		}
	}
	return c.Conn.Write(b)
}

// While the hub is away, acks reach nobody. That ends no run, though it be twice that a message has come just before.
func TestWorker_AcksThatReachNobodyWhileTheHubIsAwayDoNotEndTheRun(t *testing.T) {
	t.Parallel()
	var dialer stallingDialer
	r, hub := leafed(t, jetstream.ConsumerConfig{AckWait: time.Hour}, &dialer)
	stop := r.start(r.worker(succeed))
	comes := func(n int) {
		msg := nats.NewMsg("orders.all")
		msg.Header.Set(producer.HeaderID, fmt.Sprintf("o%d", n))
		if _, err := hub.PublishMsg(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		r.finishes(n)
	}
	for n := range 2 {
		release := dialer.stall()
		defer release()
		comes(n + 1)
		r.server.Shutdown()
		release()
		if err := r.js.Conn().FlushTimeout(longWait); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			lasts(3 * time.Second) // the first may be a consumer that comes back
		}
		r.server.Restart()
		r.look()
	}
	comes(3)
	r.stops(stop)
}

func TestWorker_WorksAtALeafNode(t *testing.T) {
	t.Parallel()
	r, _ := leafed(t, jetstream.ConsumerConfig{MaxAckPending: 10}, &stallingDialer{})
	r.publish(40, oneKey)
	w := r.worker(succeed)
	w.LookEvery(lookEvery)
	stop := r.start(w)
	r.acked(40)
	r.stops(stop)
}

// A stream of the leaf node's own answers, too, and sooner: that says nothing about the hub's.
func TestPublisher_StreamOfAnotherDomainSpeaksForItselfOnly(t *testing.T) {
	t.Parallel()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	at := func(domain string, o *server.Options) *nats.Conn {
		return natstest.Start(t, func(all *server.Options) {
			all.JetStreamDomain, all.LeafNode = domain, o.LeafNode
		}).Connect(nats.MaxReconnects(-1))
	}
	hub := at("hub", &server.Options{LeafNode: server.LeafNodeOpts{Host: "127.0.0.1", Port: port}})
	leaf := at("leaf", &server.Options{LeafNode: server.LeafNodeOpts{
		ReconnectInterval: 50 * time.Millisecond,
		Remotes:           []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}}},
	}})
	stream := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}
	own, err := jetstream.NewWithDomain(leaf, "leaf")
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.NewWithDomain(leaf, "hub")
	if err != nil {
		t.Fatal(err)
	}
	for _, js := range []jetstream.JetStream{own, js} {
		until(t, "the stream", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = js.CreateStream(ctx, stream)
			return err == nil
		})
	}
	p, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	message := func(id string) producer.Message {
		return producer.Message{ID: id, Topic: "orders.all", Payload: []byte("tea")}
	}
	until(t, "both streams to take a message", func() bool {
		return p.Publish(t.Context(), message("both")) == nil
	})
	home, err := jetstream.New(hub)
	if err != nil {
		t.Fatal(err)
	}
	if err := home.DeleteStream(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	err = p.Publish(t.Context(), message("leaf"))
	if failed, ok := producer.Failures(err, 1); !ok || len(failed) != 1 || !failed[0].Unknown {
		t.Errorf("only the leaf node has the message, and Publish returned %v, want a failure that is unknown", err)
	}
	if want := `only stream "orders" of domain "leaf" has the message, want one of domain "hub"`; err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %q, want %q in it", err, want)
	}
}

// Each acknowledgement of the leaf node's stream asks for the hub's name, and without the right to do so each question waits in vain.
func TestPublisher_WithoutTheRightToAskForTheDomainHardlyAsks(t *testing.T) {
	t.Parallel()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	hub := natstest.Start(t, func(o *server.Options) {
		o.JetStreamDomain, o.LeafNode = "hub", server.LeafNodeOpts{Host: "127.0.0.1", Port: port}
	})
	leaf := natstest.Start(t, func(o *server.Options) {
		o.JetStreamDomain, o.LeafNode = "leaf", server.LeafNodeOpts{
			ReconnectInterval: 50 * time.Millisecond,
			Remotes:           []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats-leaf", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}}},
		}
		o.Users = []*server.User{{Username: "all", Password: "all"}, {Username: "shop", Password: "shop", Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Allow: []string{"orders.>"}}, Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}}
		o.NoAuthUser = "all"
	})
	for domain, conn := range map[string]*nats.Conn{"hub": hub.Connect(), "leaf": leaf.Connect()} {
		js, err := jetstream.NewWithDomain(conn, domain)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}}); err != nil {
			t.Fatal(err)
		}
	}
	var denied atomic.Int32
	js, err := jetstream.NewWithDomain(leaf.Connect(nats.UserInfo("shop", "shop"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			denied.Add(1)
		}
	})), "hub")
	if err != nil {
		t.Fatal(err)
	}
	p, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(n int) error {
		return p.Publish(t.Context(), producer.Message{ID: fmt.Sprintf("o%d", n), Topic: "orders.all", Payload: []byte("tea")})
	}
	until(t, "both streams to take a message", func() bool { return publish(0) == nil })
	begin := time.Now()
	for n := range 6 {
		if err := publish(1 + n); err != nil {
			t.Errorf("Publish: %v", err)
		}
	}
	if n, most := denied.Load(), 2+int32(time.Since(begin)/(10*time.Second)); n > most {
		t.Errorf("the servers were asked %d times, want at most %d", n, most)
	}
}
