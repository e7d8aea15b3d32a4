package pgwal_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/outbox/pgwal"
	"github.com/oncemill/oncemill/producer"
)

const backlog = 30_000

// counter is a publisher that counts.
type counter struct {
	n    atomic.Int64
	each func(producer.Message)
}

func (c *counter) Publish(_ context.Context, messages ...producer.Message) error {
	if c.each != nil {
		for _, m := range messages {
			c.each(m)
		}
	}
	c.n.Add(int64(len(messages)))
	return nil
}

// BenchmarkDrain publishes a backlog of rows, each written by a transaction of its own, from the start of the relay to
// the last acknowledgement. bench/outbox measures what JetStream adds.
func BenchmarkDrain(b *testing.B) {
	for _, mode := range []struct {
		name      string
		configure func(*settings)
	}{
		{"table-retained", func(*settings) {}},
		{"table-deleted", func(c *settings) { c.Retention = outbox.DeleteAtOnce }},
	} {
		b.Run(mode.name, func(b *testing.B) {
			var acked, settled time.Duration
			for b.Loop() {
				b.StopTimer()
				a, s := drain(b, &counter{}, mode.configure)
				acked, settled = acked+a, settled+s
				b.StartTimer()
			}
			b.ReportMetric(backlog*float64(b.N)/acked.Seconds(), "published/s")
			b.ReportMetric(backlog*float64(b.N)/settled.Seconds(), "settled/s")
		})
	}
}

func drain(b *testing.B, c *counter, configure func(*settings)) (acked, settled time.Duration) {
	g := newRig(b, configure, func(c *settings) { c.Logger = slog.New(slog.DiscardHandler) })
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := w; i < backlog; i += 4 {
				m := message(producer.NewID())
				m.Payload = make([]byte, 220)
				g.write(m)
			}
		})
	}
	writers.Wait()
	r, err := pgwal.New(g.config.Config, c)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- r.Run(ctx) }()
	until(b, "the backlog", func() bool { return c.n.Load() >= backlog })
	acked = time.Since(began)
	g.awaitConfirmed()
	settled = time.Since(began)
	cancel()
	if err := <-ended; err != nil || c.n.Load() != backlog {
		b.Fatalf("%d published, %v", c.n.Load(), err)
	}
	return acked, settled
}

// BenchmarkLatency measures from the end of a commit to the publisher, at 200 transactions a second.
func BenchmarkLatency(b *testing.B) {
	g := newRig(b, func(c *settings) { c.Logger, c.PollInterval = slog.New(slog.DiscardHandler), time.Second })
	var mu sync.Mutex
	arrived := map[string]time.Time{}
	c := &counter{each: func(m producer.Message) {
		mu.Lock()
		defer mu.Unlock()
		arrived[m.ID] = time.Now()
	}}
	r, err := pgwal.New(g.config.Config, c)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	g.write(message("first"))
	until(b, "the start", func() bool { return c.n.Load() == 1 })

	committed := map[string]time.Time{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	n := 0
	for b.Loop() {
		<-tick.C
		m := message(fmt.Sprint(n))
		n++
		tx := g.begin(m)
		g.commit(tx)
		committed[m.ID] = time.Now()
	}
	until(b, "the last", func() bool { return c.n.Load() == int64(n)+1 })
	cancel()
	<-ended
	var took []time.Duration
	for id, at := range committed {
		took = append(took, max(0, arrived[id].Sub(at)))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
}
