// Package explain tells people what happened to a message, from its record. It decides nothing.
package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Story is what a record says, in words.
type Story struct {
	Headline string   // how it stands, in a sentence or two
	Effects  string   // how often its effect may have happened
	Events   []Event  // what is known of it, oldest first
	Next     string   // what happens next, and when
	Actions  []Action // what one can do about it
	Steps    []Step   // the parts of its handler that are remembered
}

// An Event happened at a time.
type Event struct {
	At   time.Time
	What string
}

// An Action is a verb of the command and the console, and what it would do here.
type Action struct{ Verb, What string }

// Tell tells the story of a record. Now is by the clock of the store, or close to it. Others are records of the same
// message under other names, and of its steps, as far as they are known.
func Tell(r *dedupstore.Record, now time.Time, others []dedupstore.Record) Story {
	t := teller{r, now}
	s := Story{Headline: t.headline(), Effects: t.effects(), Events: t.events()}
	if elsewhere := t.elsewhere(others); elsewhere != "" {
		s.Effects += " " + elsewhere
	}
	s.Next, s.Actions = t.next()
	s.Steps = t.steps(others)
	return s
}

// Decided is what duplicates get as the reason of a failure that an operator decided, if the operator gives none.
const Decided = "an operator decided so"

type teller struct {
	*dedupstore.Record
	now time.Time
}

// dead reports whether the last run's lease ended without an outcome.
func (t teller) dead() bool { return t.State == dedupstore.Running && !t.now.Before(t.Until) }

// asked reports whether it is to run again because somebody asked for it.
func (t teller) asked() bool {
	return t.State == dedupstore.Retryable && t.Attempts == 0 && t.Reruns > 0
}

func (t teller) headline() string {
	switch {
	case t.State == dedupstore.Absent:
		return "There is no record of it: it was never claimed here, or its window is over, or somebody forgot it."
	case t.dead():
		return fmt.Sprintf("Its last run got no further: %s claimed it %s, and the lease ended %s without an outcome. "+
			"Nobody has taken it over yet.", t.holder(), t.ago(t.Claimed), t.ago(t.Until))
	case t.State == dedupstore.Running && t.Claimed.IsZero():
		return "The handler of its first delivery is running. When it began is not recorded: the record is a part of " +
			"its transaction."
	case t.State == dedupstore.Running && t.Started:
		return fmt.Sprintf("Its handler is running on %s: attempt %d, claimed %s. The lease lasts another %s unless "+
			"it is extended.", t.holder(), t.Attempts, t.ago(t.Claimed), Span(t.Until.Sub(t.now)))
	case t.State == dedupstore.Running:
		return fmt.Sprintf("%s has claimed it %s, for attempt %d. Its handler has started just now, or is about to.",
			t.holder(), t.ago(t.Claimed), t.Attempts)
	case t.asked():
		return fmt.Sprintf("It had failed, and somebody asked for a rerun. %s", because(t.Outcome.Reason))
	case t.State == dedupstore.Retryable && t.Attempts == 0:
		return "Its run was interrupted, as by a shutdown, and gave its attempt back."
	case t.State == dedupstore.Retryable:
		return fmt.Sprintf("Attempt %d failed, and it will be tried again. %s", t.Attempts, because(t.Outcome.Reason))
	case t.State == dedupstore.Publishing:
		return t.outcome() + " What it has to publish is not known to be published yet."
	default:
		return t.outcome()
	}
}

// outcome says what the processing ended in.
func (t teller) outcome() string {
	attempt := fmt.Sprintf("attempt %d", t.Attempts)
	if t.Attempts == 1 {
		attempt = "the first attempt"
	}
	if t.Reruns > 0 {
		attempt += fmt.Sprintf(" after %s on request", count(t.Reruns, "rerun"))
	}
	switch {
	case t.ByOperator:
		return strings.TrimSpace(fmt.Sprintf("Its outcome was unknown, and an operator decided: %s. %s", t.Outcome.Kind,
			quoted(t.Outcome.Reason)))
	case t.Outcome.Kind == dedupstore.Succeeded:
		took := ""
		if !t.Ended.IsZero() {
			took = " in " + Span(t.Ended.Sub(t.Claimed))
		}
		return fmt.Sprintf("It succeeded %s, on %s%s.", t.ago(t.end()), attempt, took)
	case t.Outcome.Kind == dedupstore.Unknown:
		return fmt.Sprintf("Nobody knows whether its effect happened: the outcome was parked as unknown %s. %s",
			t.ago(t.end()), because(t.Outcome.Reason))
	case t.Outcome.Exhausted:
		return fmt.Sprintf("It failed %s: all its attempts are spent. %s", t.ago(t.end()), because(t.Outcome.Reason))
	default:
		return fmt.Sprintf("It failed for good %s, on %s. %s", t.ago(t.end()), attempt, because(t.Outcome.Reason))
	}
}

// end is when the last run ended, or when it was claimed if that is not known.
func (t teller) end() time.Time {
	if t.Ended.IsZero() {
		return t.Claimed
	}
	return t.Ended
}

// effects says how often the effect may have happened, outside of an inbox.
func (t teller) effects() string {
	done := t.State != dedupstore.Absent && t.Outcome.Kind == dedupstore.Succeeded
	died, failed, before := 0, 0, t.History
	if t.ByOperator && t.Ended.IsZero() && len(before) > 0 { // the last of these is the run that was decided about
		before = before[:len(before)-1]
	}
	for _, past := range before {
		if past.Ended.IsZero() && past.Reason == "" {
			died++
		} else {
			failed++
		}
	}
	switch {
	case t.ByOperator:
	case t.dead():
		died++
	case t.asked(), t.State == dedupstore.Retryable && t.Attempts > 0,
		t.Outcome.Kind == dedupstore.Failed && !t.Outcome.Exhausted,
		t.Outcome.Exhausted && len(t.History) < t.Attempts: // else a claim found the attempts spent
		failed++
	}
	var doubts []string
	if died > 0 {
		doubts = append(doubts, fmt.Sprintf("%s died and may have made it before", runs(died)))
	}
	if failed > 0 {
		doubts = append(doubts, fmt.Sprintf("%s ended in an error, and may have made it before that", runs(failed)))
	}
	if len(t.History) == dedupstore.MaxHistory {
		doubts = append(doubts, "the record keeps no more runs than these")
	}
	switch {
	case t.State == dedupstore.Absent:
		return ""
	case t.ByOperator && !done:
		return "An operator says that its effect did not happen."
	case t.ByOperator && len(doubts) == 0:
		return "An operator says that its effect happened."
	case t.ByOperator:
		return fmt.Sprintf("An operator says that its effect happened. Outside of an inbox, it may have happened more "+
			"often: %s.", strings.Join(doubts, "; "))
	case done && len(doubts) == 0:
		return "Its effect happened once."
	case done:
		return fmt.Sprintf("Its effect happened in the run that succeeded. Outside of an inbox, it may have happened "+
			"more often: %s.", strings.Join(doubts, "; "))
	case t.Outcome.Kind == dedupstore.Unknown:
		return "Its effect happened, or it did not: ask the system that it acts on."
	case len(doubts) > 0:
		return fmt.Sprintf("No run has succeeded. Outside of an inbox, its effect may have happened all the same: %s.",
			strings.Join(doubts, "; "))
	default:
		return "Its effect is not known to have happened."
	}
}

func runs(n int) string {
	if n == 1 {
		return "one run"
	}
	return fmt.Sprintf("%d runs", n)
}

func (t teller) events() (events []Event) {
	if t.State == dedupstore.Absent {
		return nil
	}
	add := func(at time.Time, format string, args ...any) {
		if !at.IsZero() {
			events = append(events, Event{at, fmt.Sprintf(format, args...)})
		}
	}
	all := append(slices.Clone(t.History), dedupstore.Attempt{Claimed: t.Claimed, Ended: t.Ended, Holder: t.Holder})
	if !t.First.IsZero() && t.First.Before(all[0].Claimed.Add(-time.Millisecond)) {
		add(t.First, "claimed for the first time; the record does not keep what followed")
	}
	for i, a := range all {
		last := i == len(all)-1
		add(a.Claimed, "claimed by %s", cmp.Or(a.Holder, "a process that is not known"))
		switch {
		case last && t.dead():
			add(t.Until, "its lease ended without an outcome")
		case last:
			t.ending(add)
		case a.Ended.IsZero() && a.Reason == "":
			add(all[i+1].Claimed, "taken over: its lease had ended without an outcome")
		case a.Ended.IsZero():
			add(a.Claimed, "the run ended; when is not recorded. %s", because(a.Reason))
		default:
			add(a.Ended, "the run ended. %s", because(a.Reason))
		}
	}
	switch {
	case t.Duplicates == 1:
		add(t.LastDuplicate, "a duplicate came, and got the outcome")
	case t.Duplicates > 1:
		add(t.LastDuplicate, "the last of %d duplicates came, and got the outcome", t.Duplicates)
	}
	slices.SortStableFunc(events, func(a, b Event) int { return a.At.Compare(b.At) })
	return events
}

// ending adds how the last run ended.
func (t teller) ending(add func(time.Time, string, ...any)) {
	switch t.State {
	case dedupstore.Retryable:
		add(t.end(), "the run ended. %s", because(t.Outcome.Reason))
	case dedupstore.Publishing:
		add(t.end(), "%s; %s to publish", t.ended(), count(len(t.Outcome.Produced), "message"))
	case dedupstore.Finished:
		add(t.end(), "%s", t.ended())
	}
}

func (t teller) ended() string {
	switch {
	case t.ByOperator:
		return "unknown; later an operator decided: " + string(t.Outcome.Kind)
	case t.Outcome.Exhausted:
		return "failed: all attempts were spent"
	default:
		return string(t.Outcome.Kind)
	}
}

// next says what happens next, and what one can do.
func (t teller) next() (string, []Action) {
	forget := Action{
		"forget", "drop the record: the next delivery runs as a first one, and its effect may happen again",
	}
	rerun := Action{"rerun", "let the next delivery run again; outside of an inbox its effect may happen twice"}
	window := ""
	if !t.Expires.IsZero() {
		window = fmt.Sprintf(" The record is kept for another %s.", Span(t.Expires.Sub(t.now)))
	}
	switch {
	case t.State == dedupstore.Absent:
		return "If it is delivered, it runs as a first delivery.", nil
	case t.dead():
		return "The next delivery takes it over as another attempt, or parks it as unknown if the policy says so.",
			[]Action{forget}
	case t.State == dedupstore.Running:
		return "Its run ends in an outcome or a retry. Deliveries that come meanwhile wait or are delayed; none is " +
			"acknowledged.", nil
	case t.State == dedupstore.Retryable && t.now.Before(t.Until):
		return fmt.Sprintf("It is due in %s. The next delivery after that runs it.", Span(t.Until.Sub(t.now))),
			[]Action{forget}
	case t.asked():
		return "It waits for a delivery, and a rerun sends none: redrive its dead letter, or publish the message " +
				"again.",
			[]Action{{"dlq redrive", "send its dead letter to the handler"}, forget}
	case t.State == dedupstore.Retryable:
		return "It is due. The next delivery runs it.", []Action{forget}
	case t.State == dedupstore.Publishing && t.now.Before(t.Until):
		return fmt.Sprintf("%s publishes it now, or the next delivery does when the lease has ended, in %s.",
			t.holder(), Span(t.Until.Sub(t.now))), nil
	case t.State == dedupstore.Publishing:
		return "The next delivery publishes it, and does not run the handler.", nil
	case t.Outcome.Kind == dedupstore.Succeeded:
		return "Every further delivery is a duplicate: it gets this outcome, and no handler runs." + window,
			[]Action{forget}
	case t.Outcome.Kind == dedupstore.Unknown:
		return "Every further delivery gets this outcome, and no handler runs." + window, []Action{
			{"complete", "say what happened, once you know it"}, rerun, forget,
		}
	case len(t.Outcome.Produced) == 0 || t.ByOperator: // it has no dead letter, or must not be tried again
		return "Every further delivery gets this failure, and no handler runs." + window, []Action{rerun, forget}
	default:
		return "Every further delivery gets this failure, and no handler runs." + window, []Action{
			{"dlq redrive", "send its dead letter to the handler again"}, rerun, forget,
		}
	}
}

func (t teller) holder() string { return cmp.Or(t.Holder, "a process that is not known") }

// ago is how long ago a time is.
func (t teller) ago(at time.Time) string {
	if d := t.now.Sub(at); d >= time.Second/2 {
		return Span(d) + " ago"
	}
	return "just now"
}

// because is a reason as a sentence.
func because(reason string) string {
	return cmp.Or(quoted(reason), "It gave no reason.")
}

func quoted(reason string) string {
	if reason == "" {
		return ""
	}
	return fmt.Sprintf("The reason: %q.", reason)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Span is a duration as people say it.
func Span(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}
