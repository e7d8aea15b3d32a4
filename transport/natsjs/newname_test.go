package natsjs_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/consumertest"
)

func TestRun_WarnsOfANewNameInAnOldGroup(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *rig{
		"worker": func(t *testing.T) *rig {
			r := newRig(t, jetstream.ConsumerConfig{})
			consumertest.Renamed(t, r.store)
			r.start(r.worker(succeed))
			return r
		},
		"batch worker": func(t *testing.T) *rig {
			r := newBatchRig(t)
			consumertest.Renamed(t, r.store)
			r.start(r.worker(func(context.Context, []string) []error { return nil }))
			return r.rig
		},
		"source, with its first message": func(t *testing.T) *rig {
			r := newRig(t, jetstream.ConsumerConfig{})
			consumertest.Renamed(t, r.store)
			r.publish(1, oneKey)
			once := r.processor()
			r.start(deciding{r.sourceOf(once), func(ctx context.Context, d consumer.Delivery) consumer.Decision {
				d.Handler = "charge"
				return once.Process(ctx, d, func(context.Context) error { return nil })
			}})
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			began := time.Now()
			until(t, "the warning", func() bool { return strings.Contains(r.log.String(), consumertest.RenamedLine) })
			if took := time.Since(began); took > longWait/4 {
				t.Errorf("the warning came after %v", took)
			}
		})
	}
}
