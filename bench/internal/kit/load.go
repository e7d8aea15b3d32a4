package kit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// A Load handles messages in some goroutines, each with one at a time, until the time is over or the messages are.
type Load struct {
	Workers  int
	Messages int64         // 0: until the time is over
	Duration time.Duration // 0: until the messages are over
}

// Run calls handle with the numbers of messages, from 0 on. It returns how long all of them took, and how long handle
// says that each took. It ends with the first error, and then the rest means nothing.
func (l Load) Run(
	ctx context.Context, handle func(ctx context.Context, n int64) (took time.Duration, err error),
) (elapsed time.Duration, took []time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var over atomic.Bool
	if l.Duration > 0 {
		timer := time.AfterFunc(l.Duration, func() { over.Store(true) })
		defer timer.Stop()
	}
	var taken atomic.Int64
	each := make([][]time.Duration, l.Workers)
	begun := time.Now()
	var workers sync.WaitGroup
	for w := range l.Workers {
		workers.Go(func() {
			for ctx.Err() == nil { // each handles one at least, however busy the machine is
				n := taken.Add(1) - 1
				if l.Messages > 0 && n >= l.Messages {
					return
				}
				d, err := handle(ctx, n)
				if err != nil {
					cancel(err)
					return
				}
				each[w] = append(each[w], d)
				if over.Load() {
					return
				}
			}
		})
	}
	workers.Wait()
	elapsed = time.Since(begun)
	for _, own := range each {
		took = append(took, own...)
	}
	if err := context.Cause(ctx); err != nil {
		return elapsed, took, err
	}
	if len(took) == 0 {
		return elapsed, took, errors.New("nothing was handled")
	}
	return elapsed, took, nil
}
