package natsjs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// A Source is a consumer.Source of JetStream pull consumers: with oncewatermill.NewSubscriber it is a Watermill
// Subscriber. It is safe for concurrent use.
type Source struct{ engine *engine }

var _ consumer.Source = (*Source)(nil)

// NewSource returns a Source whose deliveries are guarded by once. The error names the field of the config that is
// wrong. Nothing is sent to the server.
func NewSource(once *consumer.Processor, js jetstream.JetStream, config SourceConfig) (*Source, error) {
	e, err := newEngine("NewSource", once, js, config.Config)
	switch {
	case err != nil:
		return nil, err
	case config.Handler != "":
		return nil, fmt.Errorf("natsjs: SourceConfig.Handler is %q: leave it empty, a Router names its handlers",
			config.Handler)
	case config.Consumer == nil:
		return nil, errors.New("natsjs: SourceConfig.Consumer is nil, want what returns the consumer of a topic")
	}
	e.consumer = config.Consumer
	return &Source{e}, nil
}

// Processor returns what the source was made with.
func (s *Source) Processor() *consumer.Processor { return s.engine.once }

// Check is Worker.Check for the consumer of a topic.
func (s *Source) Check(ctx context.Context, topic string) error {
	_, _, err := s.engine.check(ctx, topic)
	return err
}

// Run is Worker.Run for the consumer of a topic. Several at once may share a consumer, but then no order is kept.
func (s *Source) Run(ctx context.Context, topic string, handle consumer.SourceHandler) error {
	return s.engine.consume(ctx, topic, worker.Work{Once: s.engine.once, Source: handle})
}

// MaxDeliveries is Worker.MaxDeliveries for all topics. Runs that share a consumer count its messages once each.
func (s *Source) MaxDeliveries() uint64 { return s.engine.maxDeliveries.Load() }
