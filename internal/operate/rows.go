package operate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// A TopicCount is how many rows of an outbox a topic has.
type TopicCount struct {
	Topic     string        `json:"topic"`
	Pending   int           `json:"pending"`
	Delayed   int           `json:"delayed"`
	Leased    int           `json:"leased"`
	Dead      int           `json:"dead"`
	Published int           `json:"published"`
	Seconds   float64       `json:"oldest_seconds"` // how long ago the oldest that is not published or dead became due
	Oldest    time.Duration `json:"-"`
}

// CountRows counts rows by topic, those with dead ones first. It makes no pause: relays that retry move rows ahead of a
// slow count, which would count them again and never end. With an error it returns what it has counted until then.
func CountRows(
	ctx context.Context, box outbox.Inspector, f outbox.Filter, looked func(rows int),
) (all []TopicCount, err error) {
	for after := ""; ; {
		var page outbox.Count
		if page, err = box.Count(ctx, f, after); err != nil {
			break
		}
		looked(page.Looked)
		for _, t := range page.Tallies {
			at := slices.IndexFunc(all, func(of TopicCount) bool { return of.Topic == t.Topic })
			if at < 0 {
				at, all = len(all), append(all, TopicCount{Topic: t.Topic})
			}
			of := &all[at]
			of.Oldest = max(of.Oldest, t.Oldest)
			of.Seconds = of.Oldest.Seconds()
			*map[outbox.State]*int{
				outbox.Pending: &of.Pending, outbox.Delayed: &of.Delayed, outbox.Leased: &of.Leased,
				outbox.Dead:      &of.Dead,
				outbox.Published: &of.Published,
			}[t.State] += t.Rows
		}
		if after = page.Next; after == "" {
			break
		}
	}
	slices.SortFunc(all, func(a, b TopicCount) int {
		return cmp.Or(cmp.Compare(b.Dead, a.Dead), strings.Compare(a.Topic, b.Topic))
	})
	return all, err
}

// EachRow calls do with the rows that a filter lets through, and on with how many rows a page has looked at, before the
// next page is read, until one of them returns false.
func EachRow(
	ctx context.Context, box outbox.Inspector, f outbox.Filter, on func(looked int) bool, do func(*outbox.RowInfo) bool,
) error {
	for after := ""; ; {
		page, err := box.List(ctx, f, after)
		if err != nil {
			return err
		}
		for i := range page.Rows {
			if !do(&page.Rows[i]) {
				return nil
			}
		}
		if after = page.Next; after == "" || !on(page.Looked) {
			return nil
		}
	}
}

// ErrNoReplay says that an outbox keeps no published rows that could be sent again.
var ErrNoReplay = errors.New("this outbox cannot replay")

// The verbs of a RowChange.
const (
	Requeue Action = "requeue"
	Discard Action = "discard"
	Replay  Action = "replay"
)

// A RowChange requeues, discards or replays rows of an outbox.
type RowChange struct {
	Box    outbox.Inspector
	Verb   Action
	Rows   []outbox.RowInfo     // that were shown
	Replay outbox.ReplayRequest // of a replay; Do sets Before and Limit
	Rate   int                  // rows a second at most

	// Tell is told what became of the rows of some messages.
	Tell func(ids []string, changed int, err error)
}

// Do makes the changes, as fast as is allowed. Rows that are no longer what they were are left.
func (c *RowChange) Do(ctx context.Context) error {
	if c.Verb == Replay {
		return c.replay(ctx)
	}
	do := c.Box.Requeue
	if c.Verb == Discard {
		do = c.Box.Discard
	}
	for batch := range slices.Chunk(c.Rows, min(c.Rate, 100)) {
		began := time.Now()
		changed, err := do(ctx, batch...)
		c.Tell(rowIDs(batch), changed, err)
		if err == nil {
			err = slow(ctx, began, changed, c.Rate)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *RowChange) replay(ctx context.Context) error {
	box, ok := c.Box.(outbox.Replayer)
	if !ok || len(c.Rows) == 0 {
		return ErrNoReplay
	}
	// Replay the rows that were shown only. With those that relays publish meanwhile it would never end.
	last := slices.MaxFunc(c.Rows, func(a, b outbox.RowInfo) int { return a.Ended.Compare(b.Ended) }).Ended
	c.Replay.Before, c.Replay.Limit = last.Add(time.Microsecond), min(c.Rate, 1000)
	for {
		began := time.Now()
		changed, err := box.Replay(ctx, c.Replay)
		c.Tell(c.Replay.IDs, changed, err)
		if err != nil || changed < c.Replay.Limit {
			return err
		}
		if err := slow(ctx, began, changed, c.Rate); err != nil {
			return err
		}
	}
}

// IDs are the message IDs of the rows, each once.
func (c *RowChange) IDs() []string { return rowIDs(c.Rows) }

func rowIDs(rows []outbox.RowInfo) (ids []string) {
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}
