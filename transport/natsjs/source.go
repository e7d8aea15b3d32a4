package natsjs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
)

// A Source is a consumer.Source of JetStream pull consumers: with oncewatermill.NewSubscriber it is a Watermill
// Subscriber. It is safe for concurrent use.
type Source struct {
	once     *consumer.Processor
	consumer func(ctx context.Context, topic string) (jetstream.Consumer, error)
	engine   engine
}

var _ consumer.Source = (*Source)(nil)

// NewSource returns a Source whose deliveries once guards. The error names the field of the config that is wrong.
// Nothing is sent to the server.
func NewSource(once *consumer.Processor, js jetstream.JetStream, config SourceConfig) (*Source, error) {
	config.Config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	switch {
	case once == nil:
		return nil, errors.New("natsjs: NewSource needs a Processor")
	case config.Handler != "":
		return nil, fmt.Errorf("natsjs: SourceConfig.Handler is %q: leave it empty, a Router names its handlers",
			config.Handler)
	case isnil.Nil(js) || js.Conn() == nil:
		return nil, errors.New("natsjs: NewSource needs a JetStream with a connection")
	case config.Consumer == nil:
		return nil, errors.New("natsjs: SourceConfig.Consumer is nil, want what returns the consumer of a topic")
	}
	return &Source{
		once: once, consumer: config.Consumer, engine: engine{js: js, config: config.Config, lookEvery: lookEvery},
	}, nil
}

// Processor returns what the source was made with.
func (s *Source) Processor() *consumer.Processor { return s.once }

// Check is Worker.Check for the consumer of a topic.
func (s *Source) Check(ctx context.Context, topic string) error {
	_, _, err := s.open(ctx, topic)
	return err
}

func (s *Source) open(ctx context.Context, topic string) (jetstream.Consumer, limits, error) {
	cons, err := s.consumer(ctx, topic)
	if err != nil {
		return nil, limits{}, fmt.Errorf("natsjs: consumer of topic %q: %w", topic, err)
	}
	if isnil.Nil(cons) {
		return nil, limits{}, fmt.Errorf("natsjs: SourceConfig.Consumer returned none for topic %q", topic)
	}
	publisher, dead := s.once.DeadLetters()
	l, err := s.engine.check(ctx, cons, s.once.Policy(), deadLetters{publisher, dead})
	if err == nil && l.maxDeliver > 0 {
		s.engine.config.Logger.WarnContext(ctx,
			"natsjs: the consumer has a MaxDeliver: a message that a Router has not taken when it stops loses a "+
				"delivery; set it to -1",
			"stream", l.stream, "consumer", l.consumer, "maxDeliver", l.maxDeliver)
	}
	return cons, l, err
}

// Run is Worker.Run for the consumer of a topic. Several at once may share a consumer, but then no order is kept.
func (s *Source) Run(
	ctx context.Context, topic string, handle consumer.SourceHandler,
) error {
	cons, limits, err := s.open(ctx, topic)
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil // stopped before anything was begun
		}
		return err
	}
	return s.engine.run(ctx, cons, limits, func(context.Context, *inFlight) process {
		return func(ctx context.Context, m *message, done func(consumer.Decision)) { handle(ctx, m.delivery, done) }
	})
}

// MaxDeliveries is Worker.MaxDeliveries for all topics.
func (s *Source) MaxDeliveries() uint64 { return s.engine.maxDeliveries.Load() }
