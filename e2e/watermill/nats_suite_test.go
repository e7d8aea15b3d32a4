package watermill_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/transport/natsjs"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// A natsPubSubs makes what Watermill's suite tests: a stream for each topic, and a durable for each group of it.
type natsPubSubs struct {
	server  *natstest.Server
	config  natsjs.Config
	streams *sync.Map // of topics; made once
}

// stream makes the stream of a topic.
func (p natsPubSubs) stream(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Stream, error) {
	sum := sha256.Sum256([]byte(topic))
	if made, ok := p.streams.Load(topic); ok {
		return made.(jetstream.Stream), nil
	}
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: hex.EncodeToString(sum[:8]), Subjects: []string{topic}, MaxAge: time.Hour})
	if err == nil {
		p.streams.Store(topic, stream)
	}
	return stream, err
}

func (p natsPubSubs) make(t *testing.T, group string) (message.Publisher, message.Subscriber) {
	t.Helper()
	js := p.server.JetStream()
	config := p.config
	config.Grace = 2 * time.Second // the suite leaves messages without an answer
	config.Logger = slog.New(slog.DiscardHandler)
	pub, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{Logger: config.Logger})
	if err != nil {
		t.Fatal(err)
	}
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once, err := consumer.New(store, consumer.Config{Group: group, Policy: oncemill.Policy{Logger: config.Logger}})
	if err != nil {
		t.Fatal(err)
	}
	source, err := natsjs.NewSource(once, js, natsjs.SourceConfig{Config: config, Consumer: func(ctx context.Context, topic string) (jetstream.Consumer, error) {
		stream, err := p.stream(ctx, js, topic)
		if err != nil {
			return nil, err
		}
		return js.CreateOrUpdateConsumer(ctx, stream.CachedInfo().Config.Name, jetstream.ConsumerConfig{Durable: group, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy})
	}})
	if err != nil {
		t.Fatal(err)
	}
	sub := subscriber(t, source)
	t.Cleanup(func() { _ = sub.Close() }) // the suite forgets some
	return streaming{oncewatermill.NewPublisher(pub), func(topic string) error {
		_, err := p.stream(context.Background(), js, topic)
		return err
	}}, sub
}

// streaming makes the stream of a topic before it publishes.
type streaming struct {
	message.Publisher
	stream func(topic string) error
}

func (s streaming) Publish(topic string, messages ...*message.Message) error {
	if err := s.stream(topic); err != nil {
		return err
	}
	return s.Publisher.Publish(topic, messages...)
}

func TestNATS_PassesWatermillsSuite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config natsjs.Config
		order  bool
	}{
		"ordered": {config: natsjs.Config{MaxInFlight: 1}, order: true},
		"wide":    {config: natsjs.Config{}},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.order && !proof {
				t.Skip("set ONCEMILL_PROOF=1 for all of it")
			}
			t.Parallel()
			p := natsPubSubs{natstest.Start(t), c.config, &sync.Map{}}
			one := func(t *testing.T) (message.Publisher, message.Subscriber) { return p.make(t, "group") }
			features := tests.Features{ConsumerGroups: true, Persistent: true, GuaranteedOrder: c.order, GuaranteedOrderWithSingleSubscriber: c.order, ForceShort: !proof}
			tests.TestPubSub(t, features, one, p.make)
		})
	}
}

func TestNATS_NewSubscribersGetOldMessages(t *testing.T) {
	t.Parallel()
	p := natsPubSubs{server: natstest.Start(t), streams: &sync.Map{}}
	each := func(t *testing.T) (message.Publisher, message.Subscriber) { return p.make(t, watermill.NewShortUUID()) }
	tests.TestNewSubscriberReceivesOldMessages(t, tests.TestContext{
		TestID: tests.NewTestID(), Features: tests.Features{NewSubscriberReceivesOldMessages: true, Persistent: true},
	}, each)
}
