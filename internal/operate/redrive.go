package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/producer"
)

// A Redrive runs the messages of dead letters again, or discards letters: first it predicts, then it does what the
// prediction has shown.
type Redrive struct {
	Letters
	Source   deadletters.Source
	Store    dedupstore.Inspector // of the records
	Every    bool                 // also those that will not run, or would run as a first run
	Discards bool                 // put the letters aside, and send nothing
	Rate     int                  // letters a second at most
	Until    time.Time            // a prediction stops reading then; zero: it reads all
	Looked   func()               // is called for each letter that a prediction reads; nil: nobody is
	Wait     func(string)         // is told why it waits; nil: nobody is

	// Tell is told what became of some letters, by the IDs of their messages, and how far it is. Result is sent,
	// discarded, refused, failed or unknown: whether it was sent.
	Tell func(result string, ids []string, err error, now Redriven)
}

// Redriven is how far a redrive has come.
type Redriven struct {
	Sent, Left, Refused     int
	Succeeded, Failed, Open int // of those sent

	// Missing are letters that were shown to be sent, were not, and still need somebody: they are gone, refused, or
	// would not do any more what was shown. Do counts them when it has come to the end.
	Missing int
}

// sends reports whether letters of a fate are sent.
func (r *Redrive) sends(f Fate) bool { return r.Discards || f.Runs() || r.Every && f != FateCannot }

const (
	trial      = 20              // messages are sent first
	trialTime  = 5 * time.Second // at most, until they have run
	watchEvery = 2 * time.Second
	mostTaken  = 100 // letters in a batch
)

// Do does what a prediction has shown, and says how far it came. It leaves the letters of which that is not true any
// more: Redriven.Missing says how many of them need another look. It stops if many messages fail again. A prediction
// serves once.
func (r *Redrive) Do(ctx context.Context, plan *Prediction) (done Redriven, err error) {
	if len(plan.shown) == 0 { // else it would take letters for nothing
		return done, nil
	}
	if r.Discards {
		err = r.discard(ctx, plan, &done)
		return done, err
	}
	taking, err := r.Source.Redrive(ctx,
		deadletters.Taking{Until: plan.newest, Positions: slices.Clone(r.Positions), Wait: r.Wait})
	if err != nil {
		return done, err
	}
	defer taking.Close()
	pub, err := taking.Publisher()
	if err != nil {
		return done, err
	}
	w := &watch{store: r.Store}
	err = r.send(ctx, plan, taking, pub, w, &done)
	w.tell(&done)
	if err == nil {
		done.Missing = len(plan.shown)
	}
	return done, err
}

// send publishes and acknowledges what was shown, batch after batch. A message that fails again makes a letter that was
// not: else there would be no end.
func (r *Redrive) send(
	ctx context.Context, plan *Prediction, taking deadletters.Redrive, pub producer.Publisher, w *watch, done *Redriven,
) error {
	for {
		began := time.Now()
		size := min(r.Rate, mostTaken)
		if done.Sent < trial {
			size = min(size, trial)
		}
		taken, err := taking.Take(ctx, size)
		if err != nil {
			return err
		}
		if len(taken) == 0 {
			return w.wait(ctx, trialTime)
		}
		chosen, left, err := r.choose(ctx, taken, plan)
		if err != nil {
			return err
		}
		done.Left += len(left)
		plan.settle(left)
		went, broken := publish(ctx, pub, chosen, func(f producer.Failure) {
			what := "unknown" // whether it was sent
			if !f.Unknown {
				done.Refused++
				what = "refused"
			}
			r.Tell(what, []string{f.ID}, f.Err, *done)
		})
		before := done.Sent
		if len(went) > 0 {
			broken = errors.Join(broken, taking.Done(ctx, lettersOf(went)))
			w.add(went)
			plan.sent(went)
			done.Sent += len(went)
			w.tell(done)
			r.Tell("sent", idsOf(went), nil, *done)
		}
		if broken != nil {
			r.Tell("failed", nil, broken, *done)
			return broken
		}
		if before < trial && done.Sent >= trial {
			err = w.wait(ctx, trialTime)
		} else if time.Since(w.looked) >= watchEvery {
			err = w.look(ctx)
		}
		if err != nil {
			return err
		}
		if err := slow(ctx, began, len(went), r.Rate); err != nil {
			return err
		}
	}
}

// slow waits as long as a rate wants after so many changes.
func slow(ctx context.Context, began time.Time, n, rate int) error {
	pace.Sleep(ctx, time.Until(began.Add(time.Second*time.Duration(n)/time.Duration(rate))))
	return ctx.Err()
}

// discard puts aside what was shown.
func (r *Redrive) discard(ctx context.Context, plan *Prediction, done *Redriven) error {
	var batch []deadletters.Letter
	flush := func() error {
		began := time.Now()
		if len(batch) == 0 {
			return ctx.Err()
		}
		var ids []string
		for i := range batch {
			ids = append(ids, cmp.Or(batch[i].Original(), batch[i].ID, batch[i].Position))
		}
		if err := r.Source.Discard(ctx, batch); err != nil {
			r.Tell("failed", ids, err, *done)
			return err
		}
		done.Sent += len(batch)
		r.Tell("discarded", ids, nil, *done)
		batch = batch[:0]
		return slow(ctx, began, len(ids), r.Rate)
	}
	var failed error
	err := r.each(ctx, func(l deadletters.Letter) bool {
		if l.Done || l.Time.After(plan.newest) || !r.Matches(&l) {
			return true
		}
		if c := (Case{Letter: l, Fate: FateCannot}); plan.has(&c) {
			if batch = append(batch, l); len(batch) >= min(r.Rate, mostTaken) {
				failed = flush()
			}
		}
		return failed == nil
	})
	if failed == nil && err == nil {
		failed = flush()
	}
	return errors.Join(failed, err)
}

// choose returns what is sent of the letters that were taken, and what is left of those that are meant: it was not
// shown to be sent, or has become another case since.
func (r *Redrive) choose(
	ctx context.Context, taken []deadletters.Letter, plan *Prediction,
) (chosen, left []Case, err error) {
	taken = slices.DeleteFunc(slices.Clone(taken), func(l deadletters.Letter) bool {
		return l.Time.After(plan.newest) || !r.Matches(&l)
	})
	cases, err := Cases(ctx, r.Store, taken)
	for i := range cases {
		if plan.has(&cases[i]) {
			chosen = append(chosen, cases[i])
		} else {
			left = append(left, cases[i])
		}
	}
	return chosen, left, err
}

// publish returns what was published. A message that the broker refuses for good is no error: it is left.
func publish(
	ctx context.Context, pub producer.Publisher, chosen []Case, each func(producer.Failure),
) (went []Case, err error) {
	messages := make([]producer.Message, len(chosen))
	for i := range chosen {
		messages[i] = chosen[i].again
	}
	err = pub.Publish(ctx, messages...)
	failures, told := producer.Failures(err, len(messages))
	if err != nil && !told {
		return nil, err
	}
	failed := map[int]bool{}
	var unknown error
	for _, f := range failures {
		failed[f.Index] = true
		each(f)
		if f.Unknown && unknown == nil {
			unknown = fmt.Errorf("publish message %q: %w", f.ID, f.Err)
		}
	}
	for i, c := range chosen {
		if !failed[i] {
			went = append(went, c)
		}
	}
	return went, unknown
}

func lettersOf(cases []Case) (all []deadletters.Letter) {
	for i := range cases {
		all = append(all, cases[i].Letter)
	}
	return all
}

func idsOf(cases []Case) (ids []string) {
	for i := range cases {
		ids = append(ids, cases[i].again.ID)
	}
	return ids
}

// A watch looks at what becomes of messages that were sent.
type watch struct {
	store             dedupstore.Inspector
	open              []watched // no outcome yet
	succeeded, failed int
	reason            string // of the last failure
	looked            time.Time
}

type watched struct {
	key   dedupstore.Key
	fence uint64
}

// add adds what was sent and may run.
func (w *watch) add(sent []Case) {
	for i := range sent {
		if c := &sent[i]; c.Fate.Runs() || c.Fate == FateAbsent {
			w.open = append(w.open, watched{c.Key, c.fence})
		}
	}
}

func (w *watch) tell(done *Redriven) {
	done.Succeeded, done.Failed, done.Open = w.succeeded, w.failed, len(w.open)
}

// mostWatched is how many records a look reads. The others have their turn with the next.
const mostWatched = 2000

// look reads records, and returns an error if too many have failed again.
func (w *watch) look(ctx context.Context) error {
	now := w.open[:min(len(w.open), mostWatched)]
	open := slices.Clone(w.open[len(now):])
	for some := range slices.Chunk(now, lookAt) {
		keys := make([]dedupstore.Key, len(some))
		for i := range some {
			keys[i] = some[i].key
		}
		records, err := w.store.Look(ctx, keys)
		if err != nil {
			return err
		}
		for i := range records {
			r := &records[i]
			switch FateOf(r, some[i].fence) {
			case FateSucceeded:
				w.succeeded++
			case FateFailed:
				w.failed++
				w.reason = r.Outcome.Reason
			default:
				open = append(open, some[i])
			}
		}
	}
	w.open, w.looked = open, time.Now()
	if w.failed*4 > max(trial, w.failed+w.succeeded) {
		return fmt.Errorf("stopped: %d of %d messages that have run failed again, the last: %.300q", w.failed,
			w.failed+w.succeeded, w.reason)
	}
	return nil
}

// wait looks until everything that was sent has an outcome, for a while.
func (w *watch) wait(ctx context.Context, most time.Duration) error {
	for end := time.Now().Add(most); ; pace.Sleep(ctx, 200*time.Millisecond) {
		if err := w.look(ctx); err != nil || len(w.open) == 0 || time.Now().After(end) {
			return err
		}
	}
}
