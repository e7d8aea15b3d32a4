package pgwal

import (
	"context"
	"sync"
)

const (
	intakeEvents = 1000 // a transaction with one row has three
	intakeBytes  = 4 << 20
)

// An intake is where the reader leaves what the log shows until the loop takes it, all together.
type intake struct {
	mu      sync.Mutex
	events  []event
	bytes   int           // of their payloads
	filled  chan struct{} // a signal: there are events
	emptied chan struct{} // a signal: there is room
}

func newIntake() *intake {
	return &intake{filled: make(chan struct{}, 1), emptied: make(chan struct{}, 1)}
}

// put adds an event when there is room for it.
func (in *intake) put(ctx context.Context, e event) {
	for !in.add(e) {
		select {
		case <-in.emptied:
		case <-ctx.Done():
			return
		}
	}
}

func (in *intake) add(e event) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.events) >= intakeEvents || in.bytes > intakeBytes {
		return false
	}
	in.events = append(in.events, e)
	if e.row != nil {
		in.bytes += len(e.row.message.Payload)
	}
	signal(in.filled)
	return true
}

// take waits for events. It returns none once ctx has ended.
func (in *intake) take(ctx context.Context) (events []event) {
	select {
	case <-in.filled:
	case <-ctx.Done():
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	events, in.events, in.bytes = in.events, nil, 0
	signal(in.emptied)
	return events
}

// signal leaves a signal, unless one is waiting already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
