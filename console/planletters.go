package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/operate"
)

const (
	lettersTime = 6 * time.Second // how long a plan reads letters: a page waits for it
	leastTime   = time.Second     // if many plan at once
	mostReading = 2               // plans that read letters at the same time
)

// read predicts when it is its turn: many plans at once would take the store's time from everybody. Those that wait
// shorten what each may read.
func (c *Console) read(ctx context.Context, p *plan) (err error) {
	waiting := c.reading.Add(1)
	defer c.reading.Add(-1)
	select {
	case c.turns <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.turns }()
	p.letters.Until = time.Now().Add(max(leastTime, lettersTime/time.Duration(max(waiting, c.reading.Load()))))
	ctx, cancel := context.WithTimeout(ctx, 2*lettersTime)
	defer cancel()
	p.Foreseen, err = p.letters.Predict(ctx)
	return err
}

func (c *Console) planLetters(ctx context.Context, p *plan, form url.Values) error {
	t, err := c.topic(cmp.Or(form.Get("letters"), p.In))
	if err != nil {
		return err
	}
	p.letters = &operate.Redrive{Source: t.Source, Rate: c.config.Rate, Discards: p.Action == Discard}
	if p.letters.Letters, err = c.chooseLetters(ctx, p, form); err != nil {
		return err
	}
	if !p.letters.Discards {
		s, err := c.store(t.Store)
		if err != nil {
			return err
		}
		p.letters.Store = s.Inspector
	}
	p.In, p.About = t.Name, aboutLetters(&p.letters.Letters)
	return nil
}

func aboutLetters(f *operate.Letters) string {
	switch {
	case len(f.Positions) > 0:
		return "chosen letters"
	case len(f.Records) == 1:
		return fmt.Sprintf("letters of message %q", f.Records[0])
	case len(f.Records) > 0:
		return "letters of " + plural(len(f.Records), "message")
	case len(f.IDs) > 0: // of the list's filter
		return fmt.Sprintf("letters of message %q", f.IDs[0])
	case f.Pattern != "":
		return fmt.Sprintf("letters whose reason is %q", f.Pattern)
	case f.Reason != "":
		return fmt.Sprintf("letters whose reason contains %q", f.Reason)
	case f.Key != "":
		return fmt.Sprintf("letters with the order key %q", f.Key)
	default:
		return "all letters"
	}
}

// chooseLetters says which letters are meant: those that were chosen in their list, or that it shows, those of the
// failures that a page shows, or those of a pattern.
func (c *Console) chooseLetters(ctx context.Context, p *plan, form url.Values) (f operate.Letters, err error) {
	var of []dedupstore.Record
	switch {
	case form.Has("choice"):
		if err := json.Unmarshal([]byte(form.Get("choice")), &f); err != nil {
			return f, refuse(http.StatusBadRequest, err)
		}
		return f, nil
	case form.Has("at"):
		f.Positions = form["at"]
		return f, nil
	case form.Get("of") == "list":
		q := letterQuery{Reason: form.Get("reason"), ID: form.Get("letter"), Key: form.Get("key")}
		if p.Action == Discard && !q.Filtered() && form.Get("all") == "" {
			return f, refuse(http.StatusBadRequest, errNobody)
		}
		return q.choice(), nil
	case form.Has("key") || form.Has("letters") && !onlyPattern(form):
		if of, p.More, err = c.chooseRecords(ctx, p, form); err != nil {
			return f, err
		}
	default:
		f.Reason, f.Pattern = form.Get("reason"), form.Get("pattern")
		if f.Pattern == operate.OtherReasons {
			return f, refuse(http.StatusBadRequest, errManyReasons)
		}
		if form.Get("state") == openFailures {
			s, err := c.store(form.Get("in"))
			if err != nil {
				return f, err
			}
			f.Archived = c.config.Notes.archived(s.Name)
		}
		return f, nil
	}
	for i := range of {
		key := of[i].Key
		if handler, _, is := ids.StepOf(key.Handler); is { // a letter is its message's
			key.Handler = handler
		}
		f.IDs, f.Records = append(f.IDs, key.ID), append(f.Records, key.String())
	}
	slices.Sort(f.IDs)
	slices.Sort(f.Records)
	f.IDs, f.Records = slices.Compact(f.IDs), slices.Compact(f.Records)
	if len(f.Records) == 0 {
		return f, refuse(http.StatusBadRequest, errNobody)
	}
	return f, nil
}

// onlyPattern reports whether a list of failures is filtered by their pattern alone, or not at all.
func onlyPattern(form url.Values) bool {
	for name, values := range form {
		known := slices.Contains([]string{"in", "do", "token", "letters", "pattern"}, name) ||
			name == "state" && values[0] == openFailures
		if !known && values[0] != "" || values[0] == operate.OtherReasons {
			return false
		}
	}
	return true
}
