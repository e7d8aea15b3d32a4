package franz_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

// slowDown has the broker slow every client of an ID down, by the 1 s that this quota asks for at most.
func (b *shareBench) slowDown(clientID string) {
	b.t.Helper()
	altered, err := b.admin.AlterClientQuotas(b.t.Context(), []kadm.AlterClientQuotaEntry{{
		Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &clientID}},
		Ops:    []kadm.AlterClientQuotaOp{{Key: "request_percentage", Value: 0.001}},
	}})
	if err == nil {
		err = altered[0].Err
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// pauses counts those that a broker asks for.
type pauses struct{ n atomic.Int32 }

func (p *pauses) OnBrokerThrottle(kgo.BrokerMetadata, time.Duration, bool) { p.n.Add(1) }

func TestThrottle_BrokerThatSlowsAWorkerDownIsSaid(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(b *shareBench, opts ...kgo.Opt) *member{
		"worker": func(b *shareBench, opts ...kgo.Opt) *member {
			return b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{},
				append(opts, kgo.ConsumerGroup(b.group+"-too"), kgo.ConsumeTopics(b.topic))...)
		},
		"share worker": func(b *shareBench, opts ...kgo.Opt) *member {
			return b.begin(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.ShareConfig{}, opts...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newShareBench(t, 1)
			b.slowDown(b.group)
			var asked pauses
			m := begin(b, kgo.ClientID(b.group), kgo.WithHooks(&asked))
			until(t, "several pauses", func() bool { return asked.n.Load() >= 5 })
			m.stop()
			_ = m.wait() // for as long as the pauses let it
			const line = "slows this client down"
			wantLog(t, b.bench, "level=WARN", line, "wait=1s")
			if n := strings.Count(b.log.String(), line); n != 1 {
				t.Errorf("%d lines, want one a minute", n)
			}
		})
	}
}
