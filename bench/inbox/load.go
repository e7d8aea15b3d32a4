package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
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
func (l load) run(ctx context.Context, s system) (y yield, err error) {
	drive := kit.Load{Workers: l.workers, Messages: int64(l.messages), Duration: l.duration}
	y.elapsed, y.took, err = drive.Run(ctx, func(ctx context.Context, number int64) (time.Duration, error) {
		n := int(number)
		if l.repeats > 0 {
			n %= l.repeats
		}
		before := time.Now()
		err := s.handle(ctx, identity(l.first+n), payload)
		return time.Since(before), err
	})
	return y, err
}
