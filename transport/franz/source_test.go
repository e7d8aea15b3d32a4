package franz_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

func (b *bench) source(once *consumer.Processor, c franz.SourceConfig, opts ...kgo.Opt) *franz.Source {
	b.t.Helper()
	if c.CommitEvery == 0 {
		c.CommitEvery = 20 * time.Millisecond
	}
	c.Logger = b.logger
	c.Opts = append([]kgo.Opt{
		kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ConsumerGroup(group), kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.HeartbeatInterval(50 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond),
	}, opts...)
	s, err := franz.NewSource(once, c)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func TestNewSource_RefusesOptionsThatDoNotFit(t *testing.T) {
	t.Parallel()
	once := newBench(t, 1).processor(consumer.Config{})
	for want, c := range map[string]franz.SourceConfig{
		"group was not specified": {},
		"kgo.ConsumeTopics":       {Opts: []kgo.Opt{kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders")}},
		"kgo.RebalanceTimeout":    {Opts: []kgo.Opt{kgo.ConsumerGroup(group), kgo.RebalanceTimeout(time.Second)}},
		"Config.MaxInFlight":      {Config: franz.Config{MaxInFlight: -1}, Opts: []kgo.Opt{kgo.ConsumerGroup(group)}},
		"SourceConfig.Handler":    {Config: franz.Config{Handler: "charge"}, Opts: []kgo.Opt{kgo.ConsumerGroup(group)}},
	} {
		if _, err := franz.NewSource(once, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that names %s", err, want)
		}
	}
	if _, err := franz.NewSource(nil, franz.SourceConfig{Opts: []kgo.Opt{kgo.ConsumerGroup(group)}}); err == nil {
		t.Error("no error without a Processor")
	}
}

func TestSource_ChecksItsTopicWithoutJoiningTheGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	s := b.source(b.processor(consumer.Config{}), franz.SourceConfig{})
	if err := s.Check(t.Context(), "orders"); err != nil {
		t.Error(err)
	}
	if err := as[*dedupstore.SetupError](t, s.Check(t.Context(), "refunds")); err.Subject != `topic "refunds"` {
		t.Errorf("the error names %s", err.Subject)
	}
	as[*dedupstore.SetupError](t, s.Check(t.Context(), "a b"))
	if g := b.cluster.GroupInfo(group); g != nil && len(g.Members) > 0 {
		t.Errorf("the group has members: %+v", g.Members)
	}
}

func TestSource_CarriesDecisionsOut(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	b.produce(0, 4, 1, 0)
	s := b.source(b.processor(consumer.Config{Policy: oncemill.Policy{Lease: 300 * time.Millisecond}}), franz.SourceConfig{})
	var mu sync.Mutex
	var seen []string
	last := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	tries := map[string]int{}
	go func() {
		ended <- s.Run(ctx, "orders", consumertest.Blocking(func(_ context.Context, d consumer.Delivery) consumer.Decision {
			mu.Lock()
			defer mu.Unlock()
			id := d.Header.Get(producer.HeaderID)
			tries[id]++
			seen = append(seen, fmt.Sprintf("%s at %s in %s", id, d.Position, d.Topic))
			since := time.Since(last)
			last = time.Now()
			first := tries[id] == 1
			if d.Count != tries[id] {
				t.Errorf("%s is delivery %d, want %d", id, d.Count, tries[id])
			}
			switch {
			case id == orderID(1) && first:
				return consumer.Decision{Action: consumer.RetryLater, Delay: 200 * time.Millisecond, Err: errors.New("later")}
			case id == orderID(1) && since < 200*time.Millisecond:
				t.Errorf("%s came again after %v", id, since)
			case id == orderID(2) && first:
				return consumer.Decision{Action: consumer.Leave, Err: errors.New("another has it")}
			case id == orderID(2) && since < 100*time.Millisecond:
				t.Errorf("%s, which was left, came again after %v", id, since)
			case id == orderID(3):
				return consumer.Decision{Action: consumer.Reject, Err: errors.New("no")}
			}
			return consumer.Decision{Action: consumer.Ack}
		}))
	}()
	until(t, "the commit", func() bool { return b.committed("orders")[0] == 4 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := "o0 at 0-0-0 in orders; o1 at 0-1-0 in orders; o1 at 0-1-0 in orders; o2 at 0-2-0 in orders; o2 at 0-2-0 in orders; o3 at 0-3-0 in orders"
	if got := strings.Join(seen, "; "); got != want {
		t.Errorf("delivered %s\nwant %s", got, want)
	}
	wantLog(t, b, "level=ERROR", "rejected", "offset=3")
}

func TestSource_DeliversHeadersAsTheyAre(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, kfake.SeedTopics(1, "dead"))
	long := strings.Repeat("x", 1<<20)
	records := []*kgo.Record{
		{Topic: "orders", Value: []byte("o0"), Headers: []kgo.RecordHeader{
			{Key: "oncemill-id", Value: []byte("o0")}, {Key: "oncemill-id", Value: []byte("o0")},
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: "nil"}, {Key: "binary", Value: []byte{0xff, 0}},
			{Key: "_watermill_message_uuid", Value: []byte("u")},
		}},
		{Topic: "orders", Key: []byte("gone"), Headers: []kgo.RecordHeader{{Key: "oncemill-id", Value: []byte("tombstone")}}},
		{Topic: "orders", Headers: []kgo.RecordHeader{{Key: "oncemill-id", Value: []byte("long")}, {Key: "long", Value: []byte(long)}}},
	}
	if err := b.newClient(kgo.ProducerBatchMaxBytes(2<<20)).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// The guard fails the records for good, so that they become dead letters.
	once := b.processor(consumer.Config{DeadLetters: b.publisher(kgo.ProducerBatchMaxBytes(4 << 20)), DeadLetterTopic: "dead", Policy: oncemill.Policy{Logger: b.logger}})
	var mu sync.Mutex
	got := map[string]consumer.Delivery{}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	s := b.source(once, franz.SourceConfig{})
	go func() {
		ended <- s.Run(ctx, "orders", consumertest.Blocking(func(ctx context.Context, d consumer.Delivery) consumer.Decision {
			mu.Lock()
			got[d.Header.Get(producer.HeaderID)] = d
			mu.Unlock()
			d.Handler = "charge"
			return once.Process(ctx, d, func(context.Context) error { return oncemill.Permanent(errors.New("no")) })
		}))
	}()
	until(t, "the commit", func() bool { return b.committed("orders")[0] == 3 })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	first, tombstone := got["o0"], got["tombstone"]
	if h := first.Header; h["a"] != "1, 2" || h["binary"] != "\xff\x00" || first.UUID != "u" || h["_watermill_message_uuid"] != "" {
		t.Errorf("delivered %q, UUID %q", h, first.UUID)
	}
	if tombstone.Payload != nil || tombstone.Header["oncemill-key"] != "gone" {
		t.Errorf("delivered a tombstone as %q, %q", tombstone.Payload, tombstone.Header)
	}
	if h := got["long"].Header; len(h["long"]) != len(long) {
		t.Errorf("delivered a header of %d bytes as %d", len(long), len(h["long"]))
	}
	deadLetters := map[string]*kgo.Record{}
	for _, rec := range b.records("dead") {
		deadLetters[headerOf(rec, producer.HeaderOriginalID)] = rec
	}
	if got := headerOf(deadLetters["o0"], "oncemill-escaped-binary"); got != "%FF%00" {
		t.Errorf("the dead letter's binary header is %q", got)
	}
	if got := headerOf(deadLetters["long"], "long"); len(got) != len(long) {
		t.Errorf("the dead letter's long header has %d bytes", len(got))
	}
}
