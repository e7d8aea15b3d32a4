package outgoing

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/pace"
)

// CleanEvery is the longest time between two times that rows are cleaned.
const CleanEvery = time.Minute

const cleanBatch = 1000

// A Cleaner removes published rows whose retention is over, a bounded batch at a time, between other work of a relay.
// It is for one goroutine.
type Cleaner struct {
	Remove func(ctx context.Context, age time.Duration, limit int) (int, error) // as outbox.Store's Clean
	Age    time.Duration                                                        // of the rows that go; below 0: of any
	Every  time.Duration                                                        // between two times
	Rows   int                                                                  // so many, or a few more, at a time
	// of a call of Remove; none begins later
	Timeout time.Duration
	Fault   func(ctx context.Context, err error) // says an error

	next time.Time
	most int // rows at once; 0: as many as can be
}

// Clean does the next step of the work if it is time.
func (c *Cleaner) Clean(ctx context.Context) {
	if time.Now().Before(c.next) || ctx.Err() != nil {
		return
	}
	if c.most == 0 {
		c.most = cleanBatch
	}
	c.next = time.Now().Add(pace.Jitter(c.Every))
	limit := time.Now().Add(c.Timeout)
	for rows := 0; rows < c.Rows && time.Now().Before(limit); {
		bounded, cancel := context.WithTimeout(ctx, c.Timeout)
		removed, err := c.Remove(bounded, max(0, c.Age), c.most)
		cancel()
		if err != nil {
			c.Fault(ctx, err)
			c.most = max(1, c.most/2) // rows that take too long together would do so for ever
			return
		}
		if removed < c.most {
			return
		}
		rows += removed
		c.most = min(cleanBatch, c.most+1+c.most/8)
	}
	c.next = time.Now() // there is probably more
}
