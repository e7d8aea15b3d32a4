package franz_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// With kgo 1.22.2 a heartbeat that is not sent because the source of credentials has returned an error ends the
// membership; one that waits for them does not. If this fails with a later kgo, change a row of docs/brokers.md.
func TestWorker_CredentialsThatCannotBeHadForAMomentCostThePartitions(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"source that returns an error": false, "source that waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1, kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "p"))
			var away atomic.Bool
			back, asked := make(chan struct{}), make(chan struct{}, 100)
			credentials := kgo.SASL(plain.Plain(func(context.Context) (plain.Auth, error) {
				if away.Load() {
					asked <- struct{}{}
					if !waits {
						return plain.Auth{}, errors.New("nobody knows who this is")
					}
					<-back
				}
				return plain.Auth{User: "u", Pass: "p"}, nil
			}))
			if err := b.newClient(credentials).ProduceSync(t.Context(), order(0)).FirstErr(); err != nil {
				t.Fatal(err)
			}
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-back:
					return nil
				}
			}), franz.Config{}, credentials)
			until(t, "the record", func() bool { return b.started() == 1 })
			away.Store(true)
			b.cluster.ControlKey(int16(kmsg.Heartbeat), func(kmsg.Request) (kmsg.Response, error, bool) {
				return nil, errors.New("the connection breaks"), true
			})
			<-asked
			lost := func() bool { return strings.Contains(b.log.String(), "partition was lost") }
			if waits {
				lasts(300 * time.Millisecond) // several heartbeats
			} else {
				until(t, "the loss", lost)
			}
			away.Store(false)
			close(back)
			until(t, "its end", func() bool { return b.finished() == 1 })
			m.leave()
			if lost() == waits {
				t.Errorf("lost its partition: %v", lost())
			}
		})
	}
}
