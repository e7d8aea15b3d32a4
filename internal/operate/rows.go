package operate

import (
	"cmp"
	"context"
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
