package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/oncemill/oncemill/producer"
)

// An answer is what the publisher said about one row.
type answer struct {
	row     Row
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
	var broken []Result
	var answers []answer
	stopped := map[string]bool{} // lanes
	for first := true; len(rows) > 0 && (first || bounded.Err() == nil); first = false {
		var wave []Row
		wave, rows = nextWave(rows, stopped)
		wave = slices.DeleteFunc(wave, func(row Row) bool {
			if row.Problem == "" {
				return false
			}
			broken = append(broken, r.unreadable(ctx, row))
			stopped[row.Lane] = true
			return true
		})
		given := r.calls(bounded, wave, apart)
		for _, a := range given {
			if a.err != nil {
				stopped[a.row.Lane] = true
			}
		}
		answers = append(answers, given...)
	}
	return append(broken, r.results(ctx, answers)...)
}

// nextWave splits rows into those that can be published now, at most one of each lane, and those that have to wait for
// them. Rows of lanes that stopped are in neither.
func nextWave(rows []Row, stopped map[string]bool) (wave, later []Row) {
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
	size := max(1, len(rows))
	if apart {
		size = 1
	}
	calls := slices.Collect(slices.Chunk(rows, size))
	answers := make([][]answer, len(calls))
	var all sync.WaitGroup
	for i, call := range calls {
		all.Go(func() { answers[i] = r.call(ctx, call) })
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
	messages := make([]producer.Message, len(rows))
	answers := make([]answer, len(rows))
	for i, row := range rows {
		messages[i] = row.Message
		answers[i].row = row
	}
	err := r.protected(ctx, messages)
	if err == nil {
		return answers
	}
	if failures, ok := perMessage(err, len(rows)); ok {
		for _, f := range failures {
			answers[f.Index].err, answers[f.Index].unknown = f.Err, f.Unknown
		}
		return answers
	}
	for i := range answers {
		answers[i].err, answers[i].unknown = err, true
	}
	return answers
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
	return r.publisher.Publish(ctx, messages...)
}

// perMessage returns what an error says about single messages. It reports false if it says nothing, or nothing that
// makes sense: then all is unknown.
func perMessage(err error, messages int) ([]producer.Failure, bool) {
	e := alone(err)
	if e == nil || len(e.Failures) == 0 {
		return nil, false
	}
	for _, f := range e.Failures {
		if f.Index < 0 || f.Index >= messages || f.Err == nil {
			return nil, false
		}
	}
	return e.Failures, true
}

// alone returns the PublishError that err is or wraps, and nil if it stands beside other errors: a message that it does
// not mention may be in one of those.
func alone(err error) *producer.PublishError {
	for ; err != nil; err = errors.Unwrap(err) { // not into joined errors
		if e, ok := err.(*producer.PublishError); ok { //nolint:errorlint // this is the search
			return e
		}
	}
	return nil
}

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
		r.log.WarnContext(ctx, "outbox: messages were not acknowledged", "messages", unsent, "of", len(answers), "error", first)
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
	case a.row.Failures+1 >= r.cfg.MaxAttempts:
		result.State = Dead
	default:
		result.State = Failed
	}
	result.Error = reason(a.err)
	if result.State != Dead {
		attempts := a.row.Failures + a.row.Unknowns + 1
		result.Delay = jitter(backoff(r.cfg.RetryMin, r.cfg.RetryMax, attempts))
	}
	return result
}

const maxReason = 1024

// reason is the text of an error, cut with a mark if it is longer than stores keep.
func reason(err error) string {
	s := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(s) <= maxReason {
		return s
	}
	mark := fmt.Sprintf("… (%d bytes)", len(s))
	return strings.ToValidUTF8(s[:maxReason-len(mark)], "") + mark
}
