package consumer

import "context"

// A Source is what a broker delivers, with everything that the broker can do with a delivery. Transports have them:
// natsjs.NewSource, franz.NewSource.
type Source interface {
	// Check looks at a topic and at how it is to be consumed, and returns an error that says what to set if that cannot
	// work. It changes nothing.
	Check(ctx context.Context, topic string) error

	// Run hands the deliveries of a topic to handle, as many at once as the source is configured for, and carries each
	// decision out when handle returns: it acknowledges, has the message delivered again not before the delay, ends it, or
	// leaves it alone. It may be called for several topics at once. Each delivery's Header belongs to handle, which may change
	// it: what is handed over again gets a new one.
	//
	// The end of ctx begins the drain: nothing new is handed over, what handle is at goes on, its decisions reach the
	// broker, and what was not handed over, or comes back as RetryLater, is given back. The context that handle gets ends
	// only when that takes longer than the source's grace. Then Run returns nil. It returns an error if it cannot go on, by
	// itself, with the same guarantees.
	Run(ctx context.Context, topic string, handle func(context.Context, Delivery) Decision) error
}

// A Steering lets Processor.Middleware do more than a Router can, which only acks and nacks. Who delivers messages to a
// Router puts it into their contexts.
type Steering struct {
	// Delivery is what is known about the delivery. Of it, Origin, System, Position, Count and Holds are used, and Topic if the Router
	// names none: the rest stands in the message.
	Delivery Delivery

	// Decide is told what to do with the message, before it is nacked. It is not called for a message that is to be
	// acknowledged, unless it was called before, and a middleware tried again; nor for one that was acknowledged before the guard
	// could decide, as by Watermill's InstantAck. What it was told last stands against an ack, too: a message that is to come
	// again, or to be left alone, was not handled, whatever a middleware made of the error. Against a nack, Ack does not stand:
	// the outputs may not have been published. Without it, a Router's nack stands for itself.
	Decide func(Decision)

	decided bool // Decide was called
}

//go:noinline
func (s *Steering) decide(d *Decision) {
	s.decided = true
	s.Decide(*d)
}

type steeringKey struct{}

// WithSteering returns a context for a message that is given to a Router.
func WithSteering(ctx context.Context, s Steering) context.Context {
	return context.WithValue(ctx, steeringKey{}, &s)
}

// steeringOf returns the steering of a message, or nil. A context that has passed a guard carries that of another message,
// whose handler has produced this one: some brokers keep contexts.
func steeringOf(ctx context.Context) *Steering {
	if insideOf(ctx) != nil {
		return nil
	}
	s, _ := ctx.Value(steeringKey{}).(*Steering)
	return s
}
