package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A system handles messages. It is safe for concurrent use.
type system interface {
	// handle gives a message its effect, or finds that it has it.
	handle(ctx context.Context, id string, payload []byte) error

	close()
}

// A load drives a system from some goroutines, each with one message at a time, until the time is over or the messages
// are.
type load struct {
	workers  int
	first    int // number of the first message
	messages int
	repeats  int           // begin again after so many; 0: never
	duration time.Duration // 0: until all messages are handled
}

const endless = 1 << 40

// A yield is what a load achieved.
type yield struct {
	elapsed time.Duration
	took    []time.Duration // each message
}

var payload = []byte(`{"d":"` + strings.Repeat("x", 248) + `"}`)

// identity is the message ID of a number: 36 bytes, as UUIDs have.
func identity(number int) string {
	return fmt.Sprintf("%08x-0000-7000-8000-%012x", number*2654435761&0xffffffff, number)
}

// run returns the first error, and then means nothing else.
func (l load) run(ctx context.Context, s system) (yield, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var over atomic.Bool
	if l.duration > 0 {
		timer := time.AfterFunc(l.duration, func() { over.Store(true) })
		defer timer.Stop()
	}
	var taken atomic.Int64
	took := make([][]time.Duration, l.workers)
	begun := time.Now()
	var all sync.WaitGroup
	for w := range l.workers {
		all.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				n := int(taken.Add(1)) - 1
				if n >= l.messages {
					return
				}
				if l.repeats > 0 {
					n %= l.repeats
				}
				before := time.Now()
				if err := s.handle(ctx, identity(l.first+n), payload); err != nil {
					cancel(err)
					return
				}
				took[w] = append(took[w], time.Since(before))
			}
		})
	}
	all.Wait()
	y := yield{elapsed: time.Since(begun)}
	for _, own := range took {
		y.took = append(y.took, own...)
	}
	if err := context.Cause(ctx); err != nil {
		return y, err
	}
	if len(y.took) == 0 {
		return y, errors.New("nothing was handled")
	}
	return y, nil
}
