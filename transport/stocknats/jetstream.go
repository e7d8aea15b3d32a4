package stocknats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmjetstream "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// JetStream returns a subscriber of the adapter's package jetstream, made safe.
//
// The adapter's ResourceInitializer is required, and must lead to a durable consumer with explicit acks and without a
// MaxDeliver, which Subscribe checks: see Durable. A NakDelay stands for nacks without a decision; without one their
// delay grows with the deliveries, from 50 ms to 10 s. The Unmarshaler may be one of the user's own. An AckWaitTimeout
// of zero is 24 h here: after it the adapter takes the next message while the handler goes on.
//
// The connection belongs to the subscriber: its Close drains it, as the adapter's does.
func JetStream(nc *nats.Conn, adapter wmjetstream.SubscriberConfig, config Config) (message.Subscriber, error) {
	s, err := newSubscriber(nc, config, adapter.NakDelay)
	switch {
	case err != nil:
		return nil, err
	case adapter.Conn != nil && adapter.Conn != nc:
		return nil, errors.New("stocknats: SubscriberConfig.Conn is another connection than nc: leave it nil")
	case adapter.ResourceInitializer == nil:
		return nil, errors.New("stocknats: SubscriberConfig.ResourceInitializer is nil, which stands for a consumer that is deleted with the subscription and forgets its acks: set it, such as with stocknats.Durable")
	}
	if _, stock := adapter.Unmarshaler.(wmjetstream.DefaultUnmarshaler); stock { // ours decodes more
		adapter.Unmarshaler = nil
	}
	if adapter.Logger == nil {
		adapter.Logger = watermill.NewSlogLogger(s.config.Logger)
	}
	if adapter.AckWaitTimeout == 0 {
		adapter.AckWaitTimeout = longestWork
	}
	adapter.Conn = nc
	adapter.NakDelay = s.steering
	adapter.Unmarshaler = pullUnmarshaler{adapter.Unmarshaler}
	adapter.ResourceInitializer = gated(adapter.ResourceInitializer, s.config.Logger)
	s.inner, err = wmjetstream.NewSubscriber(adapter)
	if err != nil {
		return nil, fmt.Errorf("stocknats: %w", err)
	}
	return s, nil
}

// Durable returns a ResourceInitializer that consumes from the consumer that plan names for a topic, by stream and
// jetstream.ConsumerConfig.Durable, and makes it if it is missing. What the config leaves at zero is as the server's
// default, except for FilterSubject, which is the topic, and AckPolicy, which is explicit. An existing consumer is taken
// as it is: its settings belong to whoever deployed it.
func Durable(plan func(topic string) (stream string, consumer jetstream.ConsumerConfig)) wmjetstream.ResourceInitializer {
	return func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
		stream, config := plan(topic)
		if config.Durable == "" {
			return nil, nil, fmt.Errorf("stocknats: topic %q: ConsumerConfig.Durable is empty", topic)
		}
		found, err := js.Consumer(ctx, stream, config.Durable)
		if !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return found, nil, err
		}
		if config.FilterSubject == "" && len(config.FilterSubjects) == 0 {
			config.FilterSubject = topic
		}
		config.AckPolicy = jetstream.AckExplicitPolicy
		made, err := js.CreateOrUpdateConsumer(ctx, stream, config) // another process may have made the same
		return made, nil, err
	}
}

// gated puts the gate of a subscription before the consumer, and checks the consumer's settings.
func gated(inner wmjetstream.ResourceInitializer, log *slog.Logger) wmjetstream.ResourceInitializer {
	return func(ctx context.Context, js jetstream.JetStream, topic string) (jetstream.Consumer, func(context.Context, watermill.LoggerAdapter), error) {
		consumer, closer, err := inner(ctx, js, topic)
		if err != nil {
			return nil, nil, err
		}
		config := consumer.CachedInfo().Config
		if err := checkConsumer(pullSettings(config)); err != nil {
			return nil, nil, fmt.Errorf("topic %q: %w", topic, err)
		}
		if expires := config.MaxRequestExpires; expires > 0 && expires < shortestRequest {
			return nil, nil, fmt.Errorf("topic %q: stocknats: consumer %q has MaxRequestExpires %v: set it to at least %v, the client asks for nothing shorter", topic, config.Durable, expires, shortestRequest)
		}
		warnOfInactivity(ctx, log, config.Durable, config.InactiveThreshold)
		if info := consumer.CachedInfo(); info.Paused {
			log.WarnContext(ctx, "oncemill: the consumer is paused: the server delivers nothing until it is resumed, or its time has come",
				"topic", topic, "consumer", config.Durable, "remaining", info.PauseRemaining)
		}
		g := gateOf(ctx)
		g.settings = pullSettings(config)
		g.look = func(ctx context.Context) (consumerSettings, error) {
			short, cancel := context.WithTimeout(ctx, lookTimeout/2)
			defer cancel()
			info, err := consumer.Info(short)
			switch {
			case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
				return consumerSettings{}, errGone
			case errors.Is(err, context.DeadlineExceeded) && deaf(ctx, js, consumer):
				return consumerSettings{}, fmt.Errorf("%w: %w", errDeaf, js.Conn().LastError())
			case err != nil:
				return consumerSettings{}, err
			}
			return pullSettings(info.Config), nil
		}
		g.setAckWait(shortestDeadline(config.AckWait, config.BackOff))
		return gatedConsumer{consumer, g, config.MaxRequestExpires, log.With("topic", topic, "consumer", config.Durable)}, closer, nil
	}
}

// deaf reports whether the server has refused the connection a subscription, and answers on a new one, though not on that which the
// client has for all answers: then it takes what the client has to be gone, also when the right is given back.
func deaf(ctx context.Context, js jetstream.JetStream, consumer jetstream.Consumer) bool {
	nc := js.Conn()
	if last := nc.LastError(); !errors.Is(last, nats.ErrPermissionViolation) && !errors.Is(last, nats.ErrMaxSubscriptionsExceeded) {
		return false
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }() // it fails where there is no connection any more
	api := jetstream.DefaultAPIPrefix
	switch o := js.Options(); {
	case o.Domain != "":
		api = "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		api = strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	is := consumer.CachedInfo()
	if err := nc.PublishRequest(api+"CONSUMER.INFO."+is.Stream+"."+is.Name, inbox, nil); err != nil {
		return false
	}
	var missed error
	var asked sync.WaitGroup
	asked.Go(func() { _, missed = consumer.Info(ctx) }) // beside the other, as both take long where the server is just slow
	_, err = sub.NextMsgWithContext(ctx)
	asked.Wait()
	return err == nil && errors.Is(missed, context.DeadlineExceeded)
}

// idleHeartbeat is how often the server says that it has nothing. When it has said nothing for twice as long, the client asks
// again: whoever leads the consumer now does not know of the request. The client's default would be 15 s.
const idleHeartbeat = 5 * time.Second

// shortestRequest is the client's shortest PullExpiry.
const shortestRequest = time.Second

// warnOfInactivity warns of a consumer that the server deletes.
func warnOfInactivity(ctx context.Context, log *slog.Logger, consumer string, threshold time.Duration) {
	if threshold > 0 {
		log.WarnContext(ctx, "oncemill: the server deletes the consumer, and all that it knows of acks, when nobody has subscribed for so long; leave InactiveThreshold out",
			"consumer", consumer, "inactiveThreshold", threshold)
	}
}

// consumerSettings are what the two client packages call differently.
type consumerSettings struct {
	durable    string
	explicit   bool
	maxDeliver int
	deliver    string // subject and queue group of a push consumer
	unbound    bool   // the server has nobody to push to
	bare       bool   // messages come without payloads
	grouped    bool   // it answers those only who ask for a group
}

// pullSettings are those of a pull consumer.
func pullSettings(c jetstream.ConsumerConfig) consumerSettings {
	return consumerSettings{durable: c.Durable, explicit: c.AckPolicy == jetstream.AckExplicitPolicy, maxDeliver: c.MaxDeliver, bare: c.HeadersOnly, grouped: len(c.PriorityGroups) > 0}
}

func checkConsumer(c consumerSettings) error {
	switch {
	case c.durable == "":
		return errors.New("stocknats: the consumer is not durable, and forgets its acks when nobody is subscribed: give it a Durable name")
	case !c.explicit:
		return fmt.Errorf("stocknats: consumer %q does not have explicit acks: set AckPolicy to explicit", c.durable)
	case c.maxDeliver > 0:
		return fmt.Errorf("stocknats: consumer %q has MaxDeliver %d: set it to -1; busy keys and outages of the store use up deliveries, and the guard's MaxAttempts ends what fails", c.durable, c.maxDeliver)
	case c.grouped:
		return fmt.Errorf("stocknats: consumer %q has PriorityGroups: leave them out, the adapter asks for no group", c.durable)
	}
	return nil
}

// shortestDeadline is the shortest time after which the server delivers an unacknowledged message again: a BackOff
// stands for AckWait.
func shortestDeadline(ackWait time.Duration, backOff []time.Duration) time.Duration {
	for i, d := range backOff {
		if i == 0 || d < ackWait {
			ackWait = d
		}
	}
	return ackWait
}

// A gatedConsumer hands messages to the adapter through a gate.
type gatedConsumer struct {
	jetstream.Consumer
	gate    *gate
	expires time.Duration // MaxRequestExpires; zero: not limited
	log     *slog.Logger
}

// Consume takes one message at a time from the server: those that wait in the process come nearer to their ack deadline.
func (c gatedConsumer) Consume(handle jetstream.MessageHandler, options ...jetstream.PullConsumeOpt) (jetstream.ConsumeContext, error) {
	heartbeat, own := idleHeartbeat, options
	options = []jetstream.PullConsumeOpt{jetstream.ConsumeErrHandler(c.says())}
	if c.expires > 0 && c.expires < jetstream.DefaultExpires {
		own = append(slices.Clone(own), jetstream.PullExpiry(c.expires))
		heartbeat = min(heartbeat, c.expires/2)
	}
	options = append(options, jetstream.PullHeartbeat(heartbeat))
	gated := func(msg jetstream.Msg) {
		if c.gate.pass() {
			handle(msg)
			return
		}
		_ = msg.NakWithDelay(giveBackDelay) // lost, it comes back at its ack deadline
	}
	own = append(slices.Clone(own), jetstream.PullMaxMessages(1))
	consuming, err := c.Consumer.Consume(gated, append(options, own...)...) // the user's own count
	if errors.Is(err, jetstream.ErrInvalidOption) {                         // a PullExpiry of the user's may be too short for it
		consuming, err = c.Consumer.Consume(gated, append(options[:1:1], own...)...)
	}
	if err != nil {
		return nil, err
	}
	c.gate.setEnded(consuming.Closed())
	return consuming, nil
}

// says logs what the client has to say, which goes on by itself or ends the subscription: the same at most once a minute.
func (c gatedConsumer) says() func(jetstream.ConsumeContext, error) {
	var mu sync.Mutex
	said := map[string]time.Time{}
	return func(_ jetstream.ConsumeContext, err error) {
		mu.Lock()
		defer mu.Unlock()
		text, now := err.Error(), time.Now()
		if now.Sub(said[text]) < time.Minute {
			return
		}
		if len(said) > 100 { // there are a few, but who knows
			clear(said)
		}
		said[text] = now
		c.log.Warn("oncemill: the client has trouble with the consumer", "error", err)
	}
}
