package console

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

func (c *Console) planRows(ctx context.Context, p *plan, form url.Values) error {
	o, err := c.box(p.In)
	if err != nil {
		return err
	}
	p.In = o.Name
	of := outbox.Dead
	if p.Action == Replay {
		of = outbox.Published
		if _, ok := o.Inspector.(outbox.Replayer); !ok {
			return refuse(http.StatusBadRequest, operate.ErrNoReplay)
		}
	}
	ids := map[string]bool{}
	for _, id := range form["row"] {
		ids[id] = true
	}
	f := outbox.Filter{States: []outbox.State{of}, Topic: form.Get("topic"), ID: form.Get("id")}
	if len(ids) == 0 && form.Get("all") == "" {
		return refuse(http.StatusBadRequest, errNobody)
	}
	last, _ := time.Parse(time.RFC3339Nano, form.Get("ended")) // of a plan before
	all, more, err := rowsOf(ctx, o.Inspector, f, mostPlanned, planTimeout, func(r *outbox.RowInfo) bool {
		return (last.IsZero() || !r.Ended.After(last)) && (len(ids) == 0 || ids[r.ID]) &&
			(form.Get("key") == "" || form.Get("key") == r.Key)
	})
	if p.Action == Replay {
		p.Topic = f.Topic
	}
	if err == nil && (more || f.Topic != "" || form.Get("key") != "") && p.Topic == "" {
		// Outboxes change rows by message ID, in all topics: show what else that is.
		clear(ids)
		for i := range all {
			ids[all[i].ID] = true
		}
		f.Topic = ""
		var cut bool
		all, cut, err = rowsOf(ctx, o.Inspector, f, math.MaxInt, 3*planTimeout, func(r *outbox.RowInfo) bool {
			return ids[r.ID]
		})
		if cut {
			return refuse(http.StatusBadRequest, errManyRows)
		}
	}
	if err != nil {
		return err
	}
	p.Rows, p.More = all, more
	counts := map[string]int64{}
	for i := range all {
		counts[all[i].Topic]++
	}
	for topic, n := range counts {
		p.Counts = append(p.Counts, amount{Name: topic, About: string(of), Tone: tone(of), N: n})
	}
	slices.SortFunc(p.Counts, biggest)
	return nil
}

// rowsOf returns rows of an outbox, at most so many, and whether there may be more.
func rowsOf(
	ctx context.Context, box outbox.Inspector, f outbox.Filter, most int, long time.Duration,
	wanted func(*outbox.RowInfo) bool,
) (rows []outbox.RowInfo, more bool, err error) {
	end := time.Now().Add(long)
	inTime := func(int) bool {
		more = time.Now().After(end)
		return !more
	}
	err = operate.EachRow(ctx, box, f, inTime, func(r *outbox.RowInfo) bool {
		if !wanted(r) {
			return true
		}
		if more = len(rows) == most; !more {
			rows = append(rows, *r)
		}
		return !more
	})
	return rows, more, err
}
