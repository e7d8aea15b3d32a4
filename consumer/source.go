package consumer

import "context"

// A Source hands out the deliveries of a broker, and carries out everything that the broker can do with one.
// natsjs.NewSource and franz.NewSource make them. It names no handler: handle fills in Delivery.Handler.
type Source interface {
	// Processor returns what the source was made with. It must guard the source's deliveries.
	Processor() *Processor

	// Check looks at a topic and at how it would be consumed. If that cannot work, it returns an error that says what
	// to set. It changes nothing.
	Check(ctx context.Context, topic string) error

	// Run hands the deliveries of a topic to handle, as many at once as the source is configured for, and carries each
	// decision out. It acknowledges a message, has it delivered again not before the delay, ends it, or leaves it
	// alone. Run may be called for several topics at once. Each delivery's Header belongs to handle, which may change
	// it: a message that is handed over again gets a new one.
	//
	// The end of ctx begins the drain. Nothing new is handed over. Calls of handle go on, and their decisions reach the
	// broker. Everything else, and what comes back as RetryLater, is given back. The context of handle ends only if
	// that takes longer than the source's grace. Then Run returns nil. It returns an error if it cannot go on with the
	// same guarantees.
	Run(ctx context.Context, topic string, handle SourceHandler) error
}

// A SourceHandler begins to handle a delivery, and tells done once what to do with it. Neither may wait: a source calls
// the handler where it receives messages. Use Processor.Start or Processor.StartAhead.
type SourceHandler func(ctx context.Context, d Delivery, done func(Decision))
