package stocknats

import (
	"context"
	"sync"
	"time"
)

// A gate stands before an adapter's subscription. Both packages send on a closed channel, which ends the process, if a
// message comes to it after the end of its context: a shut gate keeps them away.
type gate struct {
	look     look             // at the consumer
	settings consumerSettings // of the consumer, as they were

	mu      sync.Mutex
	shut    bool
	passed  int
	ackWait time.Duration   // of the consumer; 0: not known
	ended   <-chan struct{} // closed when the client takes nothing more; nil: not known
}

type gateKey struct{}

func withGate(ctx context.Context, g *gate) context.Context {
	return context.WithValue(ctx, gateKey{}, g)
}

func gateOf(ctx context.Context) *gate {
	g, _ := ctx.Value(gateKey{}).(*gate)
	return g
}

// pass counts a message that goes to the adapter, and reports false if none may.
func (g *gate) pass() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.passed++
	return true
}

// close shuts the gate and returns how many messages have passed it.
func (g *gate) close() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
	return g.passed
}

func (g *gate) setAckWait(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ackWait = d
}

func (g *gate) setEnded(c <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = c
}

// end is closed when the client has ended the subscription by itself. It may be nil.
func (g *gate) end() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended
}

// deadline is the consumer's ack deadline.
func (g *gate) deadline() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ackWait
}
