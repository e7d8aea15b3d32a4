package natsjs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/worker"
)

// inFlight holds the messages that the server has given us and that are not settled. It has each processed as soon as
// those before it with its order key are settled.
type inFlight struct {
	*session
	process process
	settler *settler
	hurry   func()                          // is called when the drain begins: nothing is to wait for more messages
	came    func(context.Context, *message) // is told of a message before it is processed
	went    func()                          // is told when one is settled, or was none

	order    worker.Order
	pool     batch.Pool
	handling sync.WaitGroup // messages
	running  atomic.Int64   // calls of process

	mu        sync.Mutex
	messages  map[*message]struct{}
	created   time.Time // when their consumer was
	delivered uint64    // the consumer's count of deliveries, as far as it was seen
}

// receive takes a message that a request brought.
func (f *inFlight) receive(ctx context.Context, msg *nats.Msg, now time.Time) {
	meta, err := msg.Metadata()
	if err != nil {
		f.log.ErrorContext(ctx, "natsjs: message is not from JetStream, and is ignored",
			"subject", msg.Subject, "error", err)
		f.went()
		return
	}
	m := f.message(ctx, msg, meta, now)
	f.mu.Lock()
	f.delivered = max(f.delivered, meta.Sequence.Consumer)
	f.messages[m] = struct{}{}
	f.mu.Unlock()
	f.came(ctx, m)
	f.handling.Add(1)
	if m.orderKey == "" { // it needs no closure
		f.begin(ctx, m)
	} else {
		f.order.Start(m.orderKey, func() { f.begin(ctx, m) })
	}
}

// begin has a message processed that may start now, and settled.
func (f *inFlight) begin(ctx context.Context, m *message) {
	if f.isDraining() && !m.last { // giving back the last delivery would lose the message
		f.pool.Go(func() {
			f.settler.giveBack(ctx, m)
			f.end(m)
		})
		return
	}
	m.tries++
	f.running.Add(1)
	f.process(ctx, m, func(d consumer.Decision) {
		f.running.Add(-1)
		if d.Action == consumer.Ack {
			f.settler.send(ctx, m, sayAck)
			f.end(m)
		} else {
			f.carryOut(ctx, m, d)
		}
	})
}

// carryOut carries out what is more than an ack, which may have to wait.
func (f *inFlight) carryOut(ctx context.Context, m *message, d consumer.Decision) {
	f.pool.Go(func() {
		if again := f.settler.settle(ctx, m, d); !again {
			f.end(m)
			return
		}
		m.delivery.Count++
		m.delivery.Header, _ = headers(m.msg.Header) // the one before was the handler's to change
		f.begin(ctx, m)
	})
}

// end forgets a message that is settled, or left to come again, and begins what follows it.
func (f *inFlight) end(m *message) {
	f.mu.Lock()
	delete(f.messages, m)
	f.mu.Unlock()
	f.went()
	f.order.Done(m.orderKey)
	f.handling.Done()
}

// all returns the messages that are in flight.
func (f *inFlight) all() []*message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.messages))
}

// seen is the consumer's count of deliveries, as far as it was seen.
func (f *inFlight) seen() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delivered
}

// compare disowns the messages if the server's consumer is not the one that they came from, after so many deliveries
// were seen. A consumer that was made again counts from one again, and perhaps its stream does, so acks could hit other
// messages. A consumer that a cluster's only node has lost is back with its old time of creation, but has counted fewer
// deliveries than were seen.
func (f *inFlight) compare(ctx context.Context, info *jetstream.ConsumerInfo, seen uint64) {
	f.mu.Lock()
	another := !info.Created.Equal(f.created) || info.Delivered.Consumer < seen
	if another {
		f.created, f.delivered = info.Created, info.Delivered.Consumer
	}
	f.mu.Unlock()
	if another {
		f.disown(ctx, "natsjs: the consumer was deleted and made again, or has lost what it had counted: what is in "+
			"flight is not settled, and comes again if it is still in the stream")
	}
}

// disown stops all acks and naks of the messages: another stream of the same name would take them for its own messages.
func (f *inFlight) disown(ctx context.Context, why string) {
	messages := f.all()
	f.log.WarnContext(ctx, why, "messages", len(messages))
	for _, m := range messages {
		m.disown()
	}
}
