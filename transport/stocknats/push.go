package stocknats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

// NATS returns a subscriber of the adapter's package nats, made safe. It works with JetStream, not without.
//
// A durable name (JetStream.DurablePrefix or DurableCalculator) is required. Subscribe makes its consumer if it is
// missing, with the settings of Config and the deliver subject "_oncemill.deliver." + stream + "." + durable: the adapter
// would delete at its end what it has made. An existing one must have
// explicit acks and no MaxDeliver. Acks are manual, whatever JetStream.SubscribeOptions say: by default the client
// acknowledges each message that the adapter is done with in any way. A NakDelay stands for nacks without a decision;
// without one their delay grows with the deliveries, from 50 ms to 10 s. The Unmarshaler may be one of the user's own. An
// AckWaitTimeout of zero is 24 h here: after it the adapter takes the next message while the handler goes on.
//
// Without a QueueGroupPrefix a consumer has one subscription at a time: Subscribe of a second process, also in a rolling
// update, returns the client's error, for minutes also after the first one's host was cut off. A consumer keeps the group that
// it was made with.
//
// The connection belongs to the subscriber: its Close drains it, as the adapter's does.
func NATS(nc *nats.Conn, adapter wmnats.SubscriberSubscriptionConfig, config Config) (message.Subscriber, error) {
	s, err := newSubscriber(nc, config, adapter.NakDelay)
	switch {
	case err != nil:
		return nil, err
	case adapter.JetStream.Disabled:
		return nil, errors.New("stocknats: JetStream.Disabled is true: without JetStream there are no acks")
	case adapter.JetStream.DurablePrefix == "" && adapter.JetStream.DurableCalculator == nil:
		return nil, errors.New("stocknats: JetStream.DurablePrefix is empty, which stands for a consumer that forgets its acks: set it, or JetStream.DurableCalculator")
	}
	if _, stock := adapter.Unmarshaler.(*wmnats.NATSMarshaler); stock { // ours decodes more
		adapter.Unmarshaler = nil
	}
	if adapter.SubjectCalculator == nil {
		adapter.SubjectCalculator = wmnats.DefaultSubjectCalculator
	}
	if adapter.AckWaitTimeout == 0 {
		adapter.AckWaitTimeout = longestWork
	}
	adapter.NakDelay = s.steering
	adapter.JetStream.SubscribeOptions = append(slices.Clone(adapter.JetStream.SubscribeOptions), nats.ManualAck())
	log := shutLogger{watermill.NewSlogLogger(s.config.Logger)}
	inner, err := wmnats.NewSubscriberWithNatsConn(nc, adapter, log)
	if err != nil {
		return nil, fmt.Errorf("stocknats: %w", err)
	}
	js, err := nc.JetStream(adapter.JetStream.ConnectOptions...)
	if err != nil {
		return nil, fmt.Errorf("stocknats: %w", err)
	}
	s.inner = pushSubscriber{nc, inner, func(g *gate) (*wmnats.Subscriber, error) {
		adapter := adapter
		adapter.Unmarshaler = gatedUnmarshaler{pushUnmarshaler{adapter.Unmarshaler}, g}
		return wmnats.NewSubscriberWithNatsConn(nc, adapter, log)
	}}
	s.prepare = func(ctx context.Context, topic string) error {
		ctx, cancel := context.WithTimeout(ctx, setupTimeout)
		defer cancel()
		if adapter.JetStream.ShouldAutoProvision() {
			if err := inner.SubscribeInitialize(topic); err != nil {
				return err
			}
		}
		subject := adapter.SubjectCalculator(adapter.QueueGroupPrefix, topic)
		return ensure(ctx, js, subject, adapter.JetStream.CalculateDurableName(subject.Primary), s.config)
	}
	return s, nil
}

// A pushSubscriber makes an adapter for each subscription, since that is what has a gate.
type pushSubscriber struct {
	nc     *nats.Conn
	closer interface{ Close() error } // drains the connection
	behind func(*gate) (*wmnats.Subscriber, error)
}

// Subscribe subscribes behind the gate of ctx.
func (s pushSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	adapter, err := s.behind(gateOf(ctx))
	if err != nil {
		return nil, err
	}
	before := s.nc.LastError()
	messages, err := adapter.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	subject, _, _ := strings.Cut(gateOf(ctx).settings.deliver, " ")
	return messages, s.refusal(before, subject)
}

// refusal returns what the server has refused of a subscription, which it tells nobody but the connection: without it nothing
// would ever come. A right that was refused before, or is not for this subject, is somebody else's. Too many subscriptions are
// the same error each time, so that one of before counts, too.
func (s pushSubscriber) refusal(before error, subject string) error {
	if err := s.nc.FlushTimeout(flushTimeout); err != nil {
		return nil //nolint:nilerr // it is away, and subscribes when it is back
	}
	after := s.nc.LastError()
	ours := errors.Is(after, nats.ErrPermissionViolation) && after != before && strings.Contains(after.Error(), strconv.Quote(subject)) //nolint:errorlint // is it the same one
	switch {
	case ours:
		return fmt.Errorf("the server refuses the subscription: %w", after)
	case errors.Is(after, nats.ErrMaxSubscriptionsExceeded):
		return fmt.Errorf("the server refuses the subscription, or has refused the connection one before, which then has to be made again: %w", after)
	}
	return nil
}

// Close drains the connection; the subscriptions have ended with their contexts.
func (s pushSubscriber) Close() error { return s.closer.Close() }

// setupTimeout bounds how long Subscribe looks for a consumer.
const setupTimeout = 10 * time.Second

// ensure sees to it that there is a durable consumer that the adapter finds, and checks its settings.
func ensure(ctx context.Context, js nats.JetStreamContext, subject *wmnats.SubjectDetail, durable string, config Config) error {
	stream, err := js.StreamNameBySubject(subject.Primary, nats.Context(ctx))
	if err != nil {
		return fmt.Errorf("stocknats: find the stream of subject %q: %w", subject.Primary, err)
	}
	info, err := js.ConsumerInfo(stream, durable, nats.Context(ctx))
	if errors.Is(err, nats.ErrConsumerNotFound) {
		info, err = js.AddConsumer(stream, &nats.ConsumerConfig{
			Durable: durable, FilterSubject: subject.Primary,
			// From the names, so that processes that start at once make the same consumer.
			DeliverSubject: "_oncemill.deliver." + stream + "." + durable, DeliverGroup: subject.QueueGroup,
			AckPolicy: nats.AckExplicitPolicy, AckWait: config.AckWait, MaxDeliver: -1, MaxAckPending: config.MaxAckPending,
		}, nats.Context(ctx))
	}
	if err != nil {
		return fmt.Errorf("stocknats: consumer %q of stream %q: %w", durable, stream, err)
	}
	if err := checkConsumer(pushSettings(info.Config)); err != nil {
		return err
	}
	warnOfInactivity(ctx, config.Logger, durable, info.Config.InactiveThreshold)
	g := gateOf(ctx)
	g.settings = pushSettings(info.Config)
	clustered := info.Cluster != nil
	g.look = func(ctx context.Context) (consumerSettings, error) {
		info, err := js.ConsumerInfo(stream, durable, nats.Context(ctx))
		if errors.Is(err, nats.ErrConsumerNotFound) || errors.Is(err, nats.ErrStreamNotFound) {
			return consumerSettings{}, errGone
		} else if err != nil {
			return consumerSettings{}, err
		}
		settings := pushSettings(info.Config)
		// A member of a cluster that is starting may answer in place of the leader, with the config and nothing else.
		settings.unbound = !info.PushBound && (info.Cluster != nil || !clustered)
		return settings, nil
	}
	g.setAckWait(shortestDeadline(info.Config.AckWait, info.Config.BackOff))
	return nil
}

// pushSettings are those of a push consumer.
func pushSettings(c nats.ConsumerConfig) consumerSettings {
	return consumerSettings{
		durable: c.Durable, explicit: c.AckPolicy == nats.AckExplicitPolicy, maxDeliver: c.MaxDeliver, bare: c.HeadersOnly,
		deliver: strings.TrimSpace(c.DeliverSubject + " " + c.DeliverGroup),
	}
}
