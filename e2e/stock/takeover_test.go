package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// What docs/adopting.md says about a group that a service had before this library: an unguarded member of Watermill's
// adapter hands it over to a franz.Worker, after it has gone or while it is there.
func TestKafka_GroupOfAStockSubscriberIsTakenOver(t *testing.T) {
	t.Parallel()
	brokers := map[string]func(*testing.T) string{
		"kfake": func(t *testing.T) string {
			c, err := kfake.NewCluster(kfake.NumBrokers(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			return c.ListenAddrs()[0]
		},
	}
	if os.Getenv("ONCEMILL_PROOF") == "1" { // it takes some seconds to start
		brokers["broker"] = func(t *testing.T) string { return kafkatest.Shared(t).Addr }
	}
	for name, addr := range brokers {
		each := func(how string, partitions int32, test func(*testing.T, *handover)) {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				test(t, newHandover(t, addr(t), partitions))
			})
		}
		each("after it", 1, func(t *testing.T, h *handover) {
			h.publish(60)
			old := h.old(20)
			within(t, "the old service to be at its next message", old.at)
			old.close()
			h.begin()
			h.settles()
			for _, id := range h.ids {
				want := 1
				if old.did(id) {
					want = 0
				}
				if n := h.ran(id); n != want {
					t.Errorf("%s ran %d times in the new service, want %d", id, n, want)
				}
			}
		})
		each("beside it", 4, func(t *testing.T, h *handover) {
			h.publish(40)
			old := h.old(math.MaxInt)
			until(t, "the old service", func() bool { return old.count() > 0 })
			h.begin(kgo.Balancers(kgo.CooperativeStickyBalancer(), kgo.RangeBalancer()))
			until(t, "the new service to have partitions", func() bool {
				h.publish(4)
				return h.total() > 0
			})
			old.close()
			h.publish(40)
			h.settles()
			for _, id := range h.ids {
				if n := h.ran(id); n > 1 || n == 0 && !old.did(id) {
					t.Errorf("%s ran %d times in the new service, and the old one has done it: %t", id, n, old.did(id))
				}
			}
		})
		each("beside it by another balancer", 1, func(t *testing.T, h *handover) {
			h.publish(60)
			old := h.old(20)
			within(t, "the old service to be at its next message", old.at)
			err := h.worker().run()
			if refused, ok := errors.AsType[*dedupstore.SetupError](err); !ok || !errors.Is(refused.Err, kerr.InconsistentGroupProtocol) {
				t.Errorf("Run returned %v, want a SetupError of the group's balancers", err)
			}
			if n := h.total(); n > 0 {
				t.Errorf("%d messages ran", n)
			}
			old.close()
			h.begin()
			h.settles()
		})
	}
}

// A handover is a topic, the group that consumes it, and what its new members have done.
type handover struct {
	t      *testing.T
	addr   string
	name   string // of topic and group
	client *kgo.Client
	store  dedupstore.Store
	ids    []string

	partitions int32

	mu   sync.Mutex
	runs map[string]int
}

var handovers atomic.Int64

func newHandover(t *testing.T, addr string, partitions int32) *handover {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	h := &handover{
		t: t, addr: addr, name: fmt.Sprintf("handover-%d", handovers.Add(1)), client: client, store: store, partitions: partitions,
		runs: map[string]int{},
	}
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), partitions, 1, nil, h.name); err != nil {
		t.Fatal(err)
	}
	return h
}

// publish adds messages to the partitions in turn.
func (h *handover) publish(n int) {
	h.t.Helper()
	for range n {
		id := fmt.Sprintf("o%03d", len(h.ids))
		record := &kgo.Record{
			Topic: h.name, Partition: int32(len(h.ids)) % h.partitions, Value: []byte(id),
			Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(id)}},
		}
		if err := h.client.ProduceSync(h.t.Context(), record).FirstErr(); err != nil {
			h.t.Fatal(err)
		}
		h.ids = append(h.ids, id)
	}
}

// settles waits until the group has committed all that was published.
func (h *handover) settles() {
	h.t.Helper()
	admin := kadm.NewClient(h.client)
	until(h.t, "everything to be committed", func() bool {
		offsets, err := admin.FetchOffsets(context.Background(), h.name)
		if err != nil {
			h.t.Fatal(err)
		}
		n := int64(0)
		offsets.Each(func(o kadm.OffsetResponse) { n += o.At })
		return n == int64(len(h.ids))
	})
}

func (h *handover) ran(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[id]
}

func (h *handover) total() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, runs := range h.runs {
		n += runs
	}
	return n
}

// An oldMember acknowledges messages without a guard.
type oldMember struct {
	close func()
	at    chan struct{} // closed when it is at a message that it does not acknowledge any more

	mu   sync.Mutex
	done []string
}

func (m *oldMember) did(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.done, id)
}

func (m *oldMember) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.done)
}

// old starts a member that acknowledges n messages.
func (h *handover) old(n int) *oldMember {
	h.t.Helper()
	config := subscriberConfig()
	config.Consumer.Group.Heartbeat.Interval = 50 * time.Millisecond // with them it learns of a rebalance
	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{h.addr}, ConsumerGroup: h.name, OverwriteSaramaConfig: config, Unmarshaler: kafka.DefaultMarshaler{},
	}, watermill.NopLogger{})
	if err != nil {
		h.t.Fatal(err)
	}
	messages, err := sub.Subscribe(context.Background(), h.name)
	if err != nil {
		h.t.Fatal(err)
	}
	m := &oldMember{at: make(chan struct{})}
	m.close = sync.OnceFunc(func() { sub.Close() })
	h.t.Cleanup(m.close)
	go func() {
		for msg := range messages {
			m.take(msg, &n)
		}
	}()
	return m
}

func (m *oldMember) take(msg *message.Message, n *int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if *n--; *n < 0 {
		if *n == -1 {
			close(m.at)
		}
		return
	}
	m.done = append(m.done, string(msg.Payload))
	msg.Ack()
}

// A newMember is a franz.Worker with its client.
type newMember struct {
	*franz.Worker
	cl *kgo.Client
}

func (h *handover) worker(opts ...kgo.Opt) newMember {
	h.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	config := consumer.Config{Group: "billing"}
	config.Policy.Logger = quiet
	once, err := consumer.New(h.store, config)
	if err != nil {
		h.t.Fatal(err)
	}
	w, err := franz.NewWorker(once, func(_ context.Context, r *kgo.Record) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.runs[string(r.Value)]++
		return nil
	}, franz.Config{Handler: "charge", Logger: quiet})
	if err != nil {
		h.t.Fatal(err)
	}
	opts = append(opts, kgo.SeedBrokers(h.addr), kgo.ConsumerGroup(h.name), kgo.ConsumeTopics(h.name))
	cl, err := kgo.NewClient(append(w.Opts(), opts...)...)
	if err != nil {
		h.t.Fatal(err)
	}
	return newMember{w, cl}
}

// run runs until it cannot go on, or for as long as a test waits.
func (m newMember) run() error {
	defer m.cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	return m.Run(ctx, m.cl)
}

// begin starts a new member, which ends with the test.
func (h *handover) begin(opts ...kgo.Opt) {
	h.t.Helper()
	m := h.worker(opts...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, m.cl) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("Run: %v", err)
		}
		m.cl.Close()
	})
}
