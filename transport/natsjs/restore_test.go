package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer"
)

// An operator restores the server's files to an earlier time, and has forgotten to stop the workers. Messages that come then have
// the numbers of those that are in flight, whose acks would be for them.
func TestWorker_AcksOfBeforeARestoreAreNotForWhatComesAfterIt(t *testing.T) {
	t.Parallel()
	for name, room := range map[string]int{"with room for more": 10, "with no room": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dir string
			r := newRig(t, jetstream.ConsumerConfig{}, func(o *server.Options) { dir = o.StoreDir })
			r.js = r.server.JetStream(nats.MaxReconnects(-1))
			r.open(jetstream.ConsumerConfig{})
			backup := filepath.Join(t.TempDir(), "backup")
			r.server.Shutdown()
			if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			r.server.Restart()
			until(t, "the server", func() bool { _, err := r.cons.Info(t.Context()); return err == nil })

			r.config.MaxInFlight = room
			r.publish(2, oneKey)
			release := make(chan struct{})
			w := r.worker(func(_ context.Context, msg jetstream.Msg) error {
				if msg.Subject() == "orders.other" {
					return oncemill.RetryAfter(time.Hour, errors.New("closed on Sundays"))
				}
				<-release
				return nil
			})
			w.LookEvery(time.Hour)
			stop := r.start(w)
			until(t, "the handlers", func() bool { _, runs := r.done(); return runs == 2 })
			if room > 2 {
				until(t, "a request", func() bool { return r.info().NumWaiting > 0 }) // it is lost with the server
			}
			r.server.Shutdown()
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(dir, os.DirFS(backup)); err != nil {
				t.Fatal(err)
			}
			r.server.Restart()
			others := r.server.JetStream()
			for i := range 2 {
				msg := nats.NewMsg("orders.other")
				msg.Header.Set(producer.HeaderID, fmt.Sprintf("other%d", i))
				if _, err := others.PublishMsg(t.Context(), msg); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the worker's notice", func() bool { return strings.Contains(r.log.String(), "has lost what it had counted") })
			if room == 2 { // another worker
				cons, err := others.Consumer(t.Context(), "orders", "billing")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := cons.Fetch(2, jetstream.FetchContext(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the other messages", func() bool { info, err := r.cons.Info(t.Context()); return err == nil && info.NumAckPending == 2 })
			close(release)
			r.finishes(2)
			r.stops(stop)
			if n := r.info().NumAckPending; n != 2 {
				t.Errorf("%d messages are pending, want those without an outcome: %+v", n, r.info().AckFloor)
			}
		})
	}
}
