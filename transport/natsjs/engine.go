package natsjs

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
)

// An engine is what Worker and Source have in common.
type engine struct {
	js            jetstream.JetStream
	config        Config
	lookEvery     time.Duration // how often a run looks at its consumer again
	maxDeliveries atomic.Uint64
}

// process begins to process a delivery, and tells done what to do with it, once. It waits for nothing, and neither must
// done.
type process func(ctx context.Context, msg jetstream.Msg, d consumer.Delivery, done func(consumer.Decision))

// run works on the messages of a consumer until ctx ends, or it cannot go on, and then drains.
func (e *engine) run(ctx context.Context, cons jetstream.Consumer, l limits, p process) error {
	s := newSession(e, cons, l, p)
	stopWatching := e.watchMaxDeliveries(ctx, l)
	defer stopWatching()
	return s.run(ctx)
}
