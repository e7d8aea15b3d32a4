package console

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/operate"
)

// chooseRecords finds the records that a form means, in the store that the plan is for.
func (c *Console) chooseRecords(
	ctx context.Context, p *plan, form url.Values,
) (all []dedupstore.Record, more bool, err error) {
	s, err := c.store(p.In)
	if err != nil {
		return nil, false, err
	}
	p.In = s.Name
	if names := form["key"]; len(names) > 0 {
		var keys []dedupstore.Key
		for _, name := range names {
			key, err := dedupstore.ParseKey(name)
			if err != nil {
				return nil, false, refuse(http.StatusBadRequest, err)
			}
			keys = append(keys, key)
		}
		return look(ctx, s.Inspector, keys)
	}
	q, err := readQuery(form, time.Now())
	switch {
	case err != nil:
		return nil, false, err
	case !q.Filtered():
		return nil, false, refuse(http.StatusBadRequest, errNobody)
	}
	f, err := c.find(ctx, s, q, mostPlanned, planTimeout)
	if err != nil {
		return nil, false, err
	}
	if q.Handler == "" { // steps go with their messages
		f.Records = slices.DeleteFunc(f.Records, func(r dedupstore.Record) bool { return ids.IsOfStep(r.Key.Handler) })
	}
	return f.Records, f.Next != "", nil
}

// look finds named records until it has as many as a plan may have. What is gone does not count: the rest of a plan
// names what has been done, too.
func look(
	ctx context.Context, i dedupstore.Inspector, keys []dedupstore.Key,
) (all []dedupstore.Record, more bool, err error) {
	there := 0
	for some := range slices.Chunk(keys, mostPlanned) {
		records, err := i.Look(ctx, some)
		if err != nil {
			return nil, false, err
		}
		for _, r := range records {
			if r.State != dedupstore.Absent {
				there++
			}
			if there > mostPlanned {
				return all, true, nil
			}
			all = append(all, r)
		}
	}
	return all, false, nil
}

func (c *Console) planRecords(ctx context.Context, p *plan, form url.Values) error {
	all, more, err := c.chooseRecords(ctx, p, form)
	if err != nil {
		return err
	}
	p.More = more
	s, err := c.store(p.In)
	if err != nil {
		return err
	}
	if p.Action == Forget {
		if all, err = operate.WithSteps(ctx, s.Inspector, all); err != nil {
			return err
		}
	}
	fences := map[string]string{} // of a plan before
	if keys := form["key"]; len(form["fence"]) == len(keys) {
		for i, key := range keys {
			fences[key] = form["fence"][i]
		}
	}
	counts, refused := map[[2]string]int64{}, map[string]int64{}
	kept := explain.Messages{} // those that need their steps
	for i := range all {
		r := &all[i]
		if kept.HaveStep(r.Key) {
			refused[operate.ErrNeeded.Error()]++
			continue
		}
		why := p.refuses(r)
		if noted := c.config.Notes.of(s.Name, r) != nil; p.Action == Restore && !noted {
			why = "is not archived"
		}
		if fence := fences[r.Key.String()]; why == "" && fence != "" && fence != strconv.FormatUint(r.Fence, 10) {
			why = "has changed since"
		}
		if why != "" {
			refused[why]++
			kept[r.Key] = true
			continue
		}
		r.Outcome.Result = nil // plans keep no payloads
		p.Records = append(p.Records, *r)
		counts[[2]string{r.Key.Group + " / " + r.Key.Handler, operate.StateOf(r)}]++
	}
	for of, n := range counts {
		p.Counts = append(p.Counts, amount{Name: of[0], About: of[1], Tone: tone(of[1]), N: n})
	}
	slices.SortFunc(p.Counts, biggest)
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		p.Refused = append(p.Refused, amount{Name: why, N: refused[why]})
	}
	return nil
}

func biggest(a, b amount) int {
	return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Name, b.Name), strings.Compare(a.About, b.About))
}

// refuses says why a record would not be changed; empty if it would.
func (p *plan) refuses(r *dedupstore.Record) string {
	var change dedupstore.Change = dedupstore.Forget{}
	switch p.Action {
	case Rerun:
		change = dedupstore.Rerun{}
	case Complete:
		change = dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}}
	case Archive, Restore:
		if r.Outcome.Kind != dedupstore.Failed && r.Outcome.Kind != dedupstore.Unknown {
			return "is no failure"
		}
		return ""
	}
	err := dedupstore.Refuse(change, *r, *r, time.Now())
	if err == nil {
		return ""
	}
	switch {
	case r.State == dedupstore.Absent:
		return "has no record"
	case r.State != dedupstore.Finished:
		return "is " + string(r.State)
	default:
		return "has " + string(r.Outcome.Kind)
	}
}
