package faults_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// A worker that lacks a right ends, and names it. Nothing is acknowledged, and nothing runs again when somebody with all
// rights takes over. Full: each right that a worker needs.
func TestJetStream_WorkerWithoutRightsNamesThem(t *testing.T) {
	t.Parallel()
	subjects := map[string]string{"acks": "$JS.ACK." + ordersStream + "." + consumerName}
	if proof {
		subjects["messages"] = "$JS.API.CONSUMER.MSG.NEXT." + ordersStream + "." + consumerName
	}
	for name, subject := range subjects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Start(t, func(o *server.Options) {
				deny := &server.SubjectPermission{Deny: []string{subject, subject + ".>"}}
				o.Users = []*server.User{
					{Username: "owner", Password: "secret"},
					{Username: "clerk", Password: "secret", Permissions: &server.Permissions{Publish: deny}},
				}
			})
			s := newShop(t, []string{as("clerk", srv)}, srv.JetStream(nats.UserInfo("owner", "secret")),
				jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, time.Second, task{
					Handler: "steady", Work: 10 * time.Millisecond, Lease: time.Second, MaxWait: time.Second, Grace: shutdownGrace, Window: 10,
				})
			s.publishOrders(20)
			s.endsByItself(s.start(), subject, consumerName)
			if n := len(s.kept()); n != 20 {
				t.Errorf("the stream holds %d messages, want all 20", n)
			}
			s.task.URLs = []string{as("owner", srv)}
			s.finish()
		})
	}
}

func as(user string, srv *natstest.Server) string {
	return strings.Replace(srv.URL(), "nats://", "nats://"+user+":secret@", 1)
}

// endsByItself waits until a process ends with an error that names all of some things.
func (s *shop) endsByItself(w workerProcess, names ...string) {
	s.t.Helper()
	start := time.Now()
	select {
	case <-w.Ended():
	case <-time.After(waitLimit):
		s.t.Fatalf("the worker goes on\n%s", w.output())
	}
	out := w.output()
	for _, name := range names {
		if !strings.Contains(out, name) {
			s.t.Errorf("the error does not name %q", name)
		}
	}
	if code := w.ExitCode(); code != 1 || s.t.Failed() {
		s.t.Errorf("the worker ended with code %d\n%s", code, out)
	}
	s.t.Logf("the worker ended after %v", time.Since(start))
}

// A worker whose consumer is deleted ends, and names it. Its work in progress is finished, and the next consumer gets
// the rest.
func TestJetStream_DeletedConsumerEndsTheWorker(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	stream := jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}
	s := newShop(t, []string{srv.URL()}, srv.JetStream(), stream, time.Second, task{
		Handler: "steady", Work: 100 * time.Millisecond, Lease: time.Second, MaxWait: time.Second, Grace: shutdownGrace, Window: 10,
	})
	s.publishOrders(100)
	w := s.start()
	until(t, "some effects", func() bool { return s.done() > 20 })
	if err := s.js.DeleteConsumer(t.Context(), ordersStream, consumerName); err != nil {
		t.Fatal(err)
	}
	s.endsByItself(w, `"`+consumerName+`"`, `"`+ordersStream+`"`, "deleted")
	if n := s.count(func(e ledger.Run) bool { return e.End == "" }); n > 0 {
		t.Errorf("%d runs did not come to an end", n)
	}
	s.makeConsumer(stream, time.Second)
	s.finish()
}

// Without most of its nodes a cluster answers nothing: a worker that begins says so, one that is at work waits, and goes
// on when they are back. A leader that is left may take 20 s to notice, and counts deliveries that it does not make: the
// worker does not have it use them up. With ONCEMILL_PROOF=1 only: it takes a cluster its time.
func TestJetStream_ClusterWithoutMostOfItsNodes(t *testing.T) {
	t.Parallel()
	if !proof {
		t.Skip("without ONCEMILL_PROOF=1")
	}
	for name, leaderDies := range map[string]bool{"the consumer's leader is left": false, "the consumer's leader dies": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clusterWithoutMostOfItsNodes(t, leaderDies)
		})
	}
}

func clusterWithoutMostOfItsNodes(t *testing.T, leaderDies bool) {
	const lease, orders = time.Second, 1000
	cluster := newNATSCluster(t)
	s := newShop(t, cluster.URLs(), cluster.JetStream(), jetstream.StreamConfig{Replicas: 3}, lease, task{
		Handler: "steady", Work: 50 * time.Millisecond, Lease: lease, MaxWait: lease, Grace: shutdownGrace, Window: 5,
	})
	s.publishOrders(orders)
	w := s.start()
	until(t, "some effects", func() bool { return s.done() > 20 })
	cons, err := find(t.Context(), s.js)
	if err != nil {
		t.Fatal(err)
	}
	cluster.AwaitCurrent(ordersStream)
	left := cluster.ConsumerLeader(ordersStream, consumerName)
	if leaderDies {
		left = (left + 1) % 3
	}
	first, second := (left+1)%3, (left+2)%3
	cluster.Kill(first)
	cluster.Kill(second)
	if s.done() == orders {
		t.Error("the worker had nothing to do any more")
	}
	failures := 0
	until(t, "the last node to notice that it is alone", func() bool {
		if _, err := s.info(); err == nil || !s.js.Conn().IsConnected() {
			failures = 0
			return false
		}
		failures++
		return failures == 3 // the first may be the last answer of a node that was killed
	})
	s.mustNotBegin(cons)
	lasts(20 * lease)
	select {
	case <-w.Ended():
		t.Fatalf("the worker ended\n%s", w.output())
	default:
	}
	cluster.Restart(first)
	cluster.Restart(second)
	start := time.Now()
	s.drain()
	most := s.redelivered()
	t.Logf("everything was done %v after the nodes were back, at its %dth delivery at most", time.Since(start), most)
	s.terminate(w)
	s.checkOnce()
}

// mustNotBegin checks that a worker which cannot look at its consumer says so.
func (s *shop) mustNotBegin(cons jetstream.Consumer) {
	s.t.Helper()
	once, err := s.task.processor(s.js, ledger.Keep(s.t, s.store, s.next().Journal))
	if err != nil {
		s.t.Fatal(err)
	}
	handle := func(context.Context, jetstream.Msg) error { return errors.New("not reached") }
	w, err := natsjs.NewWorker(once, s.js, cons, handle, natsjs.Config{Handler: "charge", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	err = w.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), `"`+consumerName+`"`) || !strings.Contains(err.Error(), `"`+ordersStream+`"`) {
		s.t.Errorf("a worker that began got %v, want an error that names consumer and stream", err)
	}
	s.t.Logf("a worker that began got: %v", err)
}
