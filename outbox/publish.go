package outbox

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// An answer is what the publisher said about one row.
type answer struct {
	row     *Row
	err     error // nil: acknowledged
	unknown bool  // err says that no answer came
}

// publish publishes a batch and returns what has to be recorded. Rows that it leaves out are to be given back: the
// relay stopped before it knew about them, or an earlier row of their lane was not acknowledged. Suspects are published
// apart, side by side, each by a call of its own: one that makes the publisher fail as a whole does not take others along
// again.
func (r *Relay) publish(ctx context.Context, rows []Row, apart bool) []Result {
	bounded, release := outlive(ctx, r.cfg.PublishTimeout, r.cfg.StopTimeout)
	defer release()
	slow, rest := r.split(rows)
	var beside waves
	var both sync.WaitGroup
	if len(slow) > 0 {
		both.Go(func() { beside = r.waves(ctx, bounded, slow, apart) })
	}
	all := r.waves(ctx, bounded, rest, apart)
	both.Wait()
	if len(slow) > 0 {
		all.broken, all.answers = append(all.broken, beside.broken...), append(all.answers, beside.answers...)
	}
	results := r.results(ctx, all.answers)
	if all.broken == nil {
		return results
	}
	return append(all.broken, results...)
}

// split takes out of rows those of lanes that lead to topics that hang, and those without a lane that do. Where no row has a lane
// none waits for another, and all stay together.
func (r *Relay) split(rows []Row) (slow, rest []Row) {
	if r.hung.None() {
		return nil, rows
	}
	lanes := map[string]bool{}
	for _, row := range rows {
		if row.Lane != "" {
			lanes[row.Lane] = lanes[row.Lane] || r.hung.Has(row.Message.Topic)
		}
	}
	if len(lanes) == 0 {
		return nil, rows
	}
	for _, row := range rows {
		if row.Lane != "" && lanes[row.Lane] || row.Lane == "" && r.hung.Has(row.Message.Topic) {
			slow = append(slow, row)
		} else {
			rest = append(rest, row)
		}
	}
	return slow, rest
}

// waves are what became of rows that were published one wave after the other.
type waves struct {
	broken  []Result // rows that cannot be read
	answers []answer
}

func (r *Relay) waves(ctx, bounded context.Context, rows []Row, apart bool) (w waves) {
	stopped := map[string]bool{} // lanes
	for first := true; len(rows) > 0 && (first || bounded.Err() == nil); first = false {
		var wave []Row
		wave, rows = nextWave(rows, stopped)
		if slices.ContainsFunc(wave, func(row Row) bool { return row.Problem != "" }) {
			wave = slices.DeleteFunc(slices.Clone(wave), func(row Row) bool {
				if row.Problem == "" {
					return false
				}
				w.broken = append(w.broken, r.unreadable(ctx, row))
				stopped[row.Lane] = true
				return true
			})
		}
		given := r.calls(bounded, wave, apart)
		none := r.hung.None()
		for _, a := range given {
			if a.err != nil {
				stopped[a.row.Lane] = true
			} else if !none {
				r.hung.Answered(a.row.Message.Topic)
			}
			if a.unknown {
				r.hung.Note(a.row.Message.Topic)
			}
		}
		if w.answers == nil {
			w.answers = given // nearly always all
			continue
		}
		w.answers = append(w.answers, given...)
	}
	return w
}

// nextWave splits rows into those that can be published now, at most one of each lane, and those that have to wait for
// them. Rows of lanes that stopped are in neither.
func nextWave(rows []Row, stopped map[string]bool) (wave, later []Row) {
	if !slices.ContainsFunc(rows, func(row Row) bool { return row.Lane != "" }) {
		return rows, nil
	}
	taken := map[string]bool{}
	for _, row := range rows {
		switch {
		case row.Lane == "":
			wave = append(wave, row)
		case stopped[row.Lane]:
		case taken[row.Lane]:
			later = append(later, row)
		default:
			taken[row.Lane] = true
			wave = append(wave, row)
		}
	}
	return wave, later
}

// calls publishes rows by one call of the publisher, or each by one of its own.
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

// unreadable parks a row that cannot be published.
func (r *Relay) unreadable(ctx context.Context, row Row) Result {
	r.log.ErrorContext(ctx, "outbox: row is dead", "id", row.Message.ID, "topic", row.Message.Topic, "error", row.Problem)
	return Result{Number: row.Number, State: Dead, Error: row.Problem}
}

// call publishes rows by one call of the publisher.
func (r *Relay) call(ctx context.Context, rows []Row) []answer {
	if len(rows) == 0 {
		return nil
	}
	messages := make([]producer.Message, len(rows))
	given := make([]answer, len(rows))
	for i := range rows {
		messages[i] = message(&rows[i])
		given[i].row = &rows[i]
	}
	within, batch := r.begin(ctx, rows, messages)
	defer end(within, batch, given)
	err := r.protected(within, messages)
	if err == nil {
		return given
	}
	if failures, ok := producer.Failures(err, len(rows)); ok {
		for _, f := range failures {
			given[f.Index].err, given[f.Index].unknown = f.Err, f.Unknown
		}
		return given
	}
	for i := range given {
		given[i].err, given[i].unknown = err, true
	}
	return given
}

// protected publishes, and turns a panic of the publisher into an error, which says nothing about the messages: a row
// must not end one relay after the other.
func (r *Relay) protected(ctx context.Context, messages []producer.Message) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("outbox: publisher panicked: %v", v)
			r.log.ErrorContext(ctx, "outbox: publisher panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	late := time.AfterFunc(r.cfg.PublishTimeout+overdue, func() {
		const text = "outbox: publisher does not return, though its time is over, and holds up the relay"
		if r.news(text) {
			r.log.WarnContext(ctx, text, "messages", len(messages), "id", messages[0].ID, "topic", messages[0].Topic)
		}
	})
	defer late.Stop()
	return r.publisher.Publish(ctx, messages...)
}

// overdue is how long after PublishTimeout a publisher is said not to obey its context.
const overdue = 10 * time.Second

// results turns answers into what is recorded, and logs what went wrong.
func (r *Relay) results(ctx context.Context, answers []answer) []Result {
	stopping := ctx.Err() != nil
	results := make([]Result, 0, len(answers))
	var unsent int
	var first error
	for _, a := range answers {
		if a.err != nil {
			unsent++
			if first == nil {
				first = a.err
			}
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
		r.complain(ctx, unsent, len(answers), first)
	}
	return results
}

// complainEvery is the shortest time between two lines about messages that were not acknowledged: a publisher that fails at once
// would make one for each batch, and each suspect.
const complainEvery = time.Second

// complain notes what was not acknowledged, and says it.
func (r *Relay) complain(ctx context.Context, messages, of int, err error) {
	r.unsaid.Lock()
	r.unsaid.messages += messages
	r.unsaid.of += of
	r.unsaid.err = err
	r.unsaid.Unlock()
	r.catchUp(ctx)
}

// catchUp says what was not acknowledged since there was a line about it, unless that was just now.
func (r *Relay) catchUp(ctx context.Context) {
	r.unsaid.Lock()
	defer r.unsaid.Unlock()
	if r.unsaid.messages == 0 {
		return
	}
	if now := time.Now(); now.Sub(r.unsaid.at) >= complainEvery || ctx.Err() != nil { // or nobody would say it
		r.log.WarnContext(ctx, "outbox: messages were not acknowledged", "messages", r.unsaid.messages, "of", r.unsaid.of, "error", r.unsaid.err)
		r.unsaid.messages, r.unsaid.of, r.unsaid.at = 0, 0, now
	}
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
	case a.row.Failures+1 >= r.cfg.MaxAttempts:
		result.State = Dead
	default:
		result.State = Failed
	}
	result.Error = errtext.Of(a.err)
	if result.State != Dead {
		attempts := a.row.Failures + a.row.Unknowns + 1
		result.Delay = pace.Jitter(pace.Backoff(r.cfg.RetryMin, r.cfg.RetryMax, attempts))
	}
	return result
}
