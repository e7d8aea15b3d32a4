package franz_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func TestSource_Conforms(t *testing.T) {
	t.Parallel()
	server := kafkatest.Shared(t)
	t.Run("per key", func(t *testing.T) {
		t.Parallel()
		sourcetest.Run(t, func(t *testing.T) sourcetest.Subject {
			on, restart := server, (func())(nil)
			if proof && strings.HasSuffix(t.Name(), "/faults/broker-restarts") {
				own := kafkatest.Start(t)
				on, restart = own, func() {
					own.Kill()
					own.Restart()
				}
			}
			s := newConforming(t, on, 2, franz.PerKey).subject()
			s.Restart = restart
			s.Lacks = map[sourcetest.Capability]string{
				sourcetest.Room: "MaxInFlight also bounds the records of a partition that wait",
			}
			return s
		})
	})
	t.Run("per partition", func(t *testing.T) {
		t.Parallel()
		sourcetest.Run(t, func(t *testing.T) sourcetest.Subject {
			s := newConforming(t, server, 2, franz.PerPartition).subject()
			s.Lacks = map[sourcetest.Capability]string{
				sourcetest.Concurrency: "one record of a partition at a time: what waits holds up all behind it",
			}
			return s
		})
	})
}

// A conforming is a topic, and the members of a group that consume it.
type conforming struct {
	t      *testing.T
	server *kafkatest.Server
	topic  string
	order  franz.Order
	client *kgo.Client
	admin  *kadm.Client

	mu    sync.Mutex
	wires map[consumer.Source]*testserver.Wire
	deaf  bool
}

func newConforming(t *testing.T, server *kafkatest.Server, partitions int, order franz.Order) *conforming {
	t.Helper()
	c := &conforming{
		t: t, server: server, topic: fmt.Sprintf("conforms-%d", rand.Uint64()), order: order,
		wires: map[consumer.Source]*testserver.Wire{},
	}
	server.CreateTopic(c.topic, partitions)
	var err error
	quick := kgo.MetadataMinAge(50 * time.Millisecond)
	c.client, err = kgo.NewClient(kgo.SeedBrokers(server.Addr), kgo.ProducerLinger(0), quick)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.Close)
	c.admin = kadm.NewClient(c.client)
	return c
}

func (c *conforming) group() string { return c.topic + "-billing" }

func (c *conforming) subject() sourcetest.Subject {
	return sourcetest.Subject{
		Topic: c.topic, Open: c.open, Publish: c.publish, Left: c.left, Batches: c.batches,
		LoseAcks: func() func() { c.lose(losesCommits); return func() { c.lose(nil) } },
		Cut: func(s consumer.Source) func() {
			c.mu.Lock()
			wire := c.wires[s]
			c.mu.Unlock()
			wire.Cut()
			return wire.Heal
		},
	}
}

// losesCommits says yes to a request that commits offsets: its key stands behind its size.
func losesCommits(written []byte) bool {
	return len(written) > 6 && int16(binary.BigEndian.Uint16(written[4:])) == kmsg.NewPtrOffsetCommitRequest().Key()
}

// lose sets what all members, also later ones, lose.
func (c *conforming) lose(what func([]byte) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = what != nil
	for _, wire := range c.wires {
		wire.Lose(what)
	}
}

// left is what lies behind the committed offsets.
func (c *conforming) left() (n int) {
	c.t.Helper()
	ends, err := c.admin.ListEndOffsets(context.Background(), c.topic)
	if err != nil {
		c.t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	committed, err := c.admin.FetchOffsets(context.Background(), c.group())
	if err != nil {
		return n // nobody has committed yet
	}
	committed.Each(func(o kadm.OffsetResponse) { n -= int(max(o.At, 0)) })
	return n
}

func (c *conforming) publish(messages ...sourcetest.Message) {
	c.t.Helper()
	for _, m := range messages {
		record := &kgo.Record{
			Topic: c.topic, Value: m.Payload, Headers: []kgo.RecordHeader{{Key: producer.HeaderID, Value: []byte(m.ID)}},
		}
		if m.Key != "" {
			record.Key = []byte(m.Key)
		}
		if err := c.client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *conforming) config(m sourcetest.Member) franz.Config {
	return franz.Config{
		Order: c.order, MaxInFlight: m.MaxInFlight, Grace: m.Grace, CommitEvery: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (c *conforming) opts(wire *testserver.Wire) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(c.server.Addr), kgo.ConsumerGroup(c.group()), kgo.Dialer(wire.DialContext),
		kgo.SessionTimeout(5 * time.Second), kgo.HeartbeatInterval(100 * time.Millisecond),
		kgo.FetchMaxWait(100 * time.Millisecond), kgo.MetadataMinAge(50 * time.Millisecond),
	}
}

func (c *conforming) open(m sourcetest.Member) consumer.Source {
	c.t.Helper()
	wire := &testserver.Wire{}
	source, err := franz.NewSource(m.Once, franz.SourceConfig{Config: c.config(m), Opts: c.opts(wire)})
	if err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wires[source] = wire
	if c.deaf {
		wire.Lose(losesCommits)
	}
	return source
}

func (c *conforming) batches(
	ctx context.Context, m sourcetest.Member, handle func(ctx context.Context, ids []string) []error,
) error {
	config := c.config(m)
	config.Handler, config.Order = "charge", franz.PerKey
	w, err := franz.NewBatchWorker(m.Once, func(ctx context.Context, records []*kgo.Record) []error {
		var ids []string
		for _, rec := range records {
			ids = append(ids, headerOf(rec, producer.HeaderID))
		}
		return handle(ctx, ids)
	}, franz.BatchConfig{Config: config, MaxBatch: 4})
	if err != nil {
		return err
	}
	opts := append(w.Opts(), c.opts(&testserver.Wire{})...)
	cl, err := kgo.NewClient(append(opts, kgo.ConsumeTopics(c.topic))...)
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	return w.Run(ctx, cl)
}
