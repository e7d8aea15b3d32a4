package console

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// An outboxSeen is what the loop knows of an outbox.
type outboxSeen struct {
	Name    string
	Stats   outbox.Stats
	At      time.Time // when that was; zero: never
	Pending []float64 // over time, oldest first
	Topics  topics
	Problem string
}

// Topics are unpublished rows by topic. They are counted without a pause: relays that retry move rows ahead of a slow
// count, which would count them again and never end.
type topics struct {
	pass
	All []topicCount
}

type topicCount struct {
	Topic                          string
	Pending, Delayed, Leased, Dead int
	Oldest                         time.Duration
}

var unpublished = outbox.Filter{States: []outbox.State{outbox.Pending, outbox.Delayed, outbox.Leased, outbox.Dead}}

func (c *Console) watchOutbox(ctx context.Context, i int) {
	o := c.config.Outboxes[i]
	shown := outboxSeen{Name: o.Name}
	var way topics
	for ctx.Err() == nil {
		began := time.Now()
		if !c.idle() {
			within, cancel := context.WithTimeout(ctx, lookTimeout)
			shown.Problem = problemOf(shown.look(within, o.Inspector, &way))
			cancel()
			now := shown
			c.see(func(s *seen) { s.Outboxes[i] = &now })
		}
		pause(ctx, max(c.config.Every, share*time.Since(began)), nil)
	}
}

func (o *outboxSeen) look(ctx context.Context, box outbox.Inspector, way *topics) error {
	stats, err := box.Stats(ctx)
	if err != nil {
		return err
	}
	o.Stats, o.At = stats, time.Now()
	o.Pending = append(slices.Clone(o.Pending[max(0, len(o.Pending)+1-mostBeats):]), float64(stats.Pending))
	for done := false; !done; {
		page, err := box.Count(ctx, unpublished, way.after)
		if err != nil {
			return err
		}
		way.add(page.Tallies)
		if done = way.next(page.Next, page.Looked, 0); done || o.Topics.Done.IsZero() {
			o.Topics = *way
		}
	}
	*way = topics{}
	return nil
}

// add takes in a page of counts.
func (way *topics) add(tallies []outbox.Tally) {
	all := slices.Clone(way.All)
	for _, t := range tallies {
		at := slices.IndexFunc(all, func(of topicCount) bool { return of.Topic == t.Topic })
		if at < 0 {
			at = len(all)
			all = append(all, topicCount{Topic: t.Topic})
		}
		of := &all[at]
		of.Oldest = max(of.Oldest, t.Oldest)
		switch t.State {
		case outbox.Pending:
			of.Pending += t.Rows
		case outbox.Delayed:
			of.Delayed += t.Rows
		case outbox.Leased:
			of.Leased += t.Rows
		case outbox.Dead:
			of.Dead += t.Rows
		}
	}
	slices.SortFunc(all, func(a, b topicCount) int {
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), strings.Compare(a.Topic, b.Topic))
	})
	way.All = all
}
