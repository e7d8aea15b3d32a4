package outbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
)

// An answer is what the publisher said about one row.
type answer struct {
	row     *Row
	err     error // nil: acknowledged
	unknown bool  // err says that no answer came
}

// publish publishes a batch and returns the results to record. The caller gives back the rows that it leaves out: the
// relay stopped before their answer, or an earlier row of their order key was not acknowledged. Each suspect is
// published by its own call, side by side, so that one that fails the whole call takes no others along.
func (r *Relay) publish(ctx context.Context, rows []Row, apart bool) []Result {
	bounded, release := outlive(ctx, r.cfg.PublishTimeout, r.cfg.storeTimeout())
	defer release()
	slow, rest := r.split(rows)
	var beside []answer
	var both sync.WaitGroup
	both.Go(func() { beside = r.waves(bounded, slow, apart) })
	answers := r.waves(bounded, rest, apart)
	both.Wait()
	return r.results(ctx, append(answers, beside...))
}

// split puts aside rows for topics that hang, together with all rows of their order keys. If no row has one, none
// waits for another, and all stay together.
func (r *Relay) split(rows []Row) (slow, rest []Row) {
	if r.hung.None() {
		return nil, rows
	}
	orderKeys := map[string]bool{}
	for _, row := range rows {
		if row.OrderKey != "" {
			orderKeys[row.OrderKey] = orderKeys[row.OrderKey] || r.hung.Has(row.Message.Topic)
		}
	}
	if len(orderKeys) == 0 {
		return nil, rows
	}
	for _, row := range rows {
		if row.OrderKey != "" && orderKeys[row.OrderKey] || row.OrderKey == "" && r.hung.Has(row.Message.Topic) {
			slow = append(slow, row)
		} else {
			rest = append(rest, row)
		}
	}
	return slow, rest
}

// wavesFor is how long waves begin. What is left of a key with many rows is given back: other keys must not wait for
// it.
const wavesFor = time.Second

// waves publishes rows one wave after the other.
func (r *Relay) waves(ctx context.Context, rows []Row, apart bool) (answers []answer) {
	stopped, began := map[string]bool{}, time.Now() // order keys
	for first := true; len(rows) > 0 && (first || ctx.Err() == nil && time.Since(began) < wavesFor); first = false {
		var wave []Row
		wave, rows = nextWave(rows, stopped)
		given := r.calls(ctx, wave, apart)
		for _, a := range given {
			switch {
			case a.err == nil:
				r.hung.Answered(a.row.Message.Topic)
				continue
			case a.unknown:
				r.hung.Note(a.row.Message.Topic)
			}
			stopped[a.row.OrderKey] = true
		}
		answers = append(answers, given...)
	}
	return answers
}

// nextWave splits rows into those that can be published now, at most one of each order key, and those that wait for
// them. It leaves out rows of order keys that stopped.
func nextWave(rows []Row, stopped map[string]bool) (wave, later []Row) {
	if !slices.ContainsFunc(rows, func(row Row) bool { return row.OrderKey != "" }) {
		return rows, nil
	}
	taken := map[string]bool{}
	for _, row := range rows {
		switch {
		case row.OrderKey == "":
			wave = append(wave, row)
		case stopped[row.OrderKey]:
		case taken[row.OrderKey]:
			later = append(later, row)
		default:
			taken[row.OrderKey] = true
			wave = append(wave, row)
		}
	}
	return wave, later
}

// calls publishes rows by one call of the publisher, or by one call each.
func (r *Relay) calls(ctx context.Context, rows []Row, apart bool) []answer {
	if !apart {
		return r.call(ctx, rows)
	}
	answers := make([][]answer, len(rows))
	var all sync.WaitGroup
	for i := range rows {
		all.Go(func() { answers[i] = r.call(ctx, rows[i:i+1]) })
	}
	all.Wait()
	return slices.Concat(answers...)
}

// call publishes rows by one call of the publisher. It refuses rows that cannot be read.
func (r *Relay) call(ctx context.Context, rows []Row) []answer {
	given := make([]answer, len(rows))
	messages, sent := make([]outgoing.Message, 0, len(rows)), make([]*answer, 0, len(rows))
	for i, row := range rows {
		given[i].row = &rows[i]
		if row.Problem != "" {
			given[i].err = errors.New(row.Problem)
			continue
		}
		messages = append(messages, outgoing.Message{Message: row.Message, Unknowns: row.Unknowns, Age: row.Age})
		sent = append(sent, &given[i])
	}
	for i, a := range r.sender.Send(ctx, messages) {
		sent[i].err, sent[i].unknown = a.Err, a.Unknown
	}
	return given
}

// results turns answers into what is recorded, and logs what went wrong.
func (r *Relay) results(ctx context.Context, answers []answer) []Result {
	stopping := ctx.Err() != nil
	results := make([]Result, 0, len(answers))
	var unsent int
	var first *answer
	for i, a := range answers {
		if a.err != nil {
			unsent++
			first = cmp.Or(first, &answers[i])
		}
		if a.unknown && stopping {
			continue // cut short by the stop: nobody's failure
		}
		result := r.result(a)
		if result.State == Dead {
			r.log.ErrorContext(ctx, "outbox: row is dead", "id", a.row.Message.ID, "topic", a.row.Message.Topic,
				"failures", a.row.Failures+1, "unknowns", a.row.Unknowns, "error", a.err)
		}
		results = append(results, result)
	}
	if unsent > 0 {
		r.sender.Complain(ctx, unsent, len(answers), &first.row.Message, first.err)
	}
	return results
}

func (r *Relay) result(a answer) Result {
	result := Result{Number: a.row.Number, State: Published}
	switch {
	case a.err == nil && r.cfg.Retention == DeleteAtOnce:
		result.State = Removed
		return result
	case a.err == nil:
		return result
	case a.unknown:
		result.State = Unknown
	case a.row.Problem != "", a.row.Failures+1 >= r.cfg.MaxAttempts:
		result.State = Dead
	default:
		result.State = Failed
	}
	result.Error = errtext.Of(a.err)
	if result.State != Dead {
		attempts := a.row.Failures + a.row.Unknowns + 1
		result.Delay = pace.Jitter(pace.Backoff(r.cfg.Backoff.Min, r.cfg.Backoff.Max, attempts))
	}
	return result
}
