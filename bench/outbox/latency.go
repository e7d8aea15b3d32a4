package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/bench/internal/kit"
)

const (
	perSecond    = 200
	latencyCells = 8 // of Options.Cell
	p99          = "p99 ms"
)

// latency measures from the end of a commit until a consumer has the message.
func latency(ctx context.Context, b *kit.Bench, r *rig) error {
	written, woken := &direct{ours: r.ours(byDefault)}, r.ours(byDefault)
	t, err := b.Compare(ctx, fmt.Sprintf("From commit to consumer, %d a second", perSecond), b.Rounds,
		r.timing(afterCommit, written, written.publish),
		r.timing(wakeLatency, woken, func(context.Context, []byte) error { woken.box.Wake(); return nil }),
		r.timing(logLatency, r.log(), func(context.Context, []byte) error { return nil }),
	)
	if err != nil {
		return err
	}
	for _, a := range []struct {
		name, row string
		most      float64
	}{{"p99_ms_wake", wakeLatency, 3}, {"p99_ms_log", logLatency, 2}} {
		if t.Has(a.row) {
			b.Limit(a.name, t.Median(a.row, p99), a.most)
		}
	}
	return nil
}

// timing commits at a steady rate, whether or not earlier messages have come.
func (r *rig) timing(name string, s system, committed func(context.Context, []byte) error) kit.Variant {
	return variant(name, func(ctx context.Context) (figures []kit.Figure, err error) {
		if err := s.install(ctx); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.uninstall(context.WithoutCancel(ctx))) }()
		stream, err := r.freshStream(ctx)
		if err != nil {
			return nil, err
		}
		relaying, err := nats.Connect(r.nats.URL)
		if err != nil {
			return nil, err
		}
		defer relaying.Close()
		stop, err := s.relay(ctx, relaying)
		if err != nil {
			return nil, err
		}
		if err := warm(ctx, s, committed, stream); err != nil {
			return nil, errors.Join(err, stop())
		}
		w := newWatch(max(int(perSecond*latencyCells*r.bench.Cell.Seconds()), 20), warmUp)
		unsubscribe, err := w.consume(ctx, r.nats.URL)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		defer unsubscribe()
		runtime.GC()
		if err := errors.Join(w.run(ctx, s, committed), arrived(ctx, stream, warmUp+w.messages), w.wait(ctx), stop()); err != nil {
			return nil, err
		}
		if _, err := r.exact(ctx, s, stream, warmUp+w.messages); err != nil {
			return nil, err
		}
		return w.figures(), nil
	})
}

// warmUp is how many messages make connections and prepare statements.
const warmUp = 100

func warm(ctx context.Context, s system, committed func(context.Context, []byte) error, stream jetstream.Stream) error {
	var next atomic.Int64
	err := side(writers, func() error {
		for {
			n := int(next.Add(1)) - 1
			if n >= warmUp {
				return nil
			}
			p := payload(n)
			if err := errors.Join(s.write(ctx, p), committed(ctx, p)); err != nil {
				return err
			}
		}
	})
	return errors.Join(err, arrived(ctx, stream, warmUp))
}

// A watch takes the times of messages with numbers from a first one on.
type watch struct {
	first, messages int
	commits, comes  []atomic.Int64 // nanoseconds since begun; 0: not yet
	begun           time.Time
	left            atomic.Int64
	complete        chan struct{}
}

func newWatch(messages, first int) *watch {
	w := &watch{
		first: first, messages: messages, begun: time.Now(), complete: make(chan struct{}),
		commits: make([]atomic.Int64, messages), comes: make([]atomic.Int64, messages),
	}
	w.left.Store(int64(messages))
	return w
}

// consume begins to take the times at which messages come.
func (w *watch) consume(ctx context.Context, url string) (stop func(), err error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	c, err := js.CreateConsumer(ctx, topic, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(w.first) + 1,
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	consumption, err := c.Consume(func(m jetstream.Msg) {
		now := time.Since(w.begun)
		if n, err := numberOf(m.Data()); err == nil && n >= w.first && n < w.first+w.messages &&
			w.comes[n-w.first].CompareAndSwap(0, int64(now)) && w.left.Add(-1) == 0 {
			close(w.complete)
		}
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return func() {
		consumption.Stop()
		<-consumption.Closed()
		conn.Close()
	}, nil
}

// run commits, each message at its time.
func (w *watch) run(ctx context.Context, s system, committed func(context.Context, []byte) error) error {
	failed := make(chan error, w.messages)
	var all sync.WaitGroup
	begun := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range w.messages {
		timer.Reset(time.Until(begun.Add(time.Duration(i) * time.Second / perSecond)))
		<-timer.C
		all.Go(func() {
			p := payload(w.first + i)
			err := s.write(ctx, p)
			w.commits[i].Store(int64(time.Since(w.begun)))
			if err = errors.Join(err, committed(ctx, p)); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// wait waits until the consumer has all messages.
func (w *watch) wait(ctx context.Context) error {
	select {
	case <-w.complete:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d of %d messages have not come: %w", w.left.Load(), w.messages, context.Cause(ctx))
	}
}

func (w *watch) figures() []kit.Figure {
	took := make([]time.Duration, w.messages)
	for i := range took {
		took[i] = max(0, time.Duration(w.comes[i].Load()-w.commits[i].Load())) // the log may be read before the writer knows
	}
	milliseconds := func(share float64) float64 { return kit.Percentile(took, share).Seconds() * 1000 }
	return []kit.Figure{{Name: p99, Value: milliseconds(.99)}, {Name: "p50 ms", Value: milliseconds(.5)}, {Name: "most ms", Value: milliseconds(1)}}
}
