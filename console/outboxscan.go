package console

import (
	"context"
	"slices"
	"time"

	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

// An outboxSeen is what the loop knows of an outbox.
type outboxSeen struct {
	Name    string
	Stats   outbox.Stats
	At      time.Time // when that was; zero: never
	Pending []float64 // over time, oldest first
	Topics  []operate.TopicCount
	Counted time.Time // when those were; zero: never
	Looked  int       // at so many rows, if there was no time for all
	Problem string
}

var unpublished = outbox.Filter{States: []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased, outbox.Dead}}

func (c *Console) watchOutbox(ctx context.Context, i int) {
	o := c.config.Outboxes[i]
	shown := outboxSeen{Name: o.Name}
	for ctx.Err() == nil {
		began := time.Now()
		if !c.idle() {
			within, cancel := context.WithTimeout(ctx, lookTimeout)
			shown.Problem = problemOf(shown.look(within, o.Inspector))
			cancel()
			now := shown
			c.see(func(s *seen) { s.Outboxes[i] = &now })
		}
		pause(ctx, max(c.config.Every, share*time.Since(began)), nil)
	}
}

func (o *outboxSeen) look(ctx context.Context, box outbox.Inspector) error {
	stats, err := box.Stats(ctx)
	if err != nil {
		return err
	}
	o.Stats, o.At = stats, time.Now()
	o.Pending = append(slices.Clone(o.Pending[max(0, len(o.Pending)+1-mostBeats):]), float64(stats.Pending))
	looked := 0
	topics, err := operate.CountRows(ctx, box, unpublished, func(rows int) { looked += rows })
	if err != nil && ctx.Err() == nil {
		return err
	}
	o.Topics, o.Counted, o.Looked = topics, time.Now(), 0
	if err != nil {
		o.Looked = looked
	}
	return nil
}
