package franz_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestWorker_HandlesEachRecordAndCommitsIt(t *testing.T) {
	t.Parallel()
	for _, order := range []franz.Order{franz.PerPartition, franz.PerKey} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			const n = 600
			b := newBench(t, 3)
			b.produce(0, n, 3, 5)
			m := b.start(b.processor(consumer.Config{}), b.handler(byRecord, nil), franz.Config{Order: order})
			until(t, "all records", func() bool { return b.finished() == n })
			m.leave()
			b.wantOnce(t, n)
			if diff := cmp.Diff(map[int32]int64{0: n / 3, 1: n / 3, 2: n / 3}, b.committed("orders")); diff != "" {
				t.Errorf("committed (-want +got):\n%s", diff)
			}
			for _, says := range []string{"consuming begins", "consuming has ended"} {
				wantLog(t, b, "level=INFO", says, "handler=charge", "group="+group, "topics=[orders]")
			}
			wantLog(t, b, "level=INFO", "partitions are assigned", "handler=charge", "partitions=\"map[orders:[0 1 2]]\"")
		})
	}
}

func TestWorker_KeepsTheOrderOfAPartitionThroughFailures(t *testing.T) {
	t.Parallel()
	const n = 90
	b := newBench(t, 3)
	b.produce(0, n, 3, 0)
	m := b.start(b.processor(consumer.Config{}), b.handler(byPartition, failing), franz.Config{})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
}

func TestWorker_KeepsTheOrderOfAKeyThroughFailures(t *testing.T) {
	t.Parallel()
	const n = 90
	b := newBench(t, 1)
	b.produce(0, n, 1, 6)
	m := b.start(b.processor(consumer.Config{}), b.handler(byKey, failing), franz.Config{Order: franz.PerKey})
	until(t, "all records", func() bool { return b.finished() == n })
	m.leave()
	b.wantOnce(t, n)
	b.wantOrder(t)
}

// failing fails every fifth record twice.
func failing(_ context.Context, id string, run int) error {
	var n int
	if _, err := fmt.Sscanf(id, "o%d", &n); err != nil {
		return err
	}
	if n%5 == 0 && run <= 2 {
		return errors.New("the bank is closed")
	}
	return nil
}

func TestWorker_DeliveriesAreNoPartOfWhatStartedIt(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 1, 1, 0)
	var inside atomic.Bool
	w, err := franz.NewWorker(b.processor(consumer.Config{}), b.handler(byRecord, func(ctx context.Context, _ string, _ int) error {
		inside.Store(trace.SpanContextFromContext(ctx).IsValid())
		return nil
	}), franz.Config{Handler: "charge", Logger: b.logger})
	if err != nil {
		t.Fatal(err)
	}
	cl := b.newClient(append(w.Opts(), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"))...)
	defer cl.CloseAllowingRebalance()
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}})
	ctx, stop := context.WithCancel(trace.ContextWithSpanContext(t.Context(), span))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, cl) }()
	until(t, "the record", func() bool { return b.finished() == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if inside.Load() {
		t.Error("the handler works within the span of Run")
	}
}

// A service that has just been started can be stopped as well as any other.
func TestRun_IsCleanIfItIsStoppedBeforeAnythingIsBegun(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	once, handle := b.processor(consumer.Config{}), b.handler(byRecord, nil)
	for name, c := range map[string]struct {
		ended func(context.Context) (context.Context, context.CancelFunc)
		want  error
	}{
		"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, nil},
		"out of time": {func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 0) }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := c.ended(t.Context())
			defer cancel()
			w, err := franz.NewWorker(once, handle, franz.Config{Handler: "charge"})
			if err != nil {
				t.Fatal(err)
			}
			cl, err := kgo.NewClient(append(w.Opts(), kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"))...)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.CloseAllowingRebalance()
			if err := w.Run(ctx, cl); !errors.Is(err, c.want) {
				t.Errorf("Run ended with %v, want %v", err, c.want)
			}
		})
	}
}
