package ledger

import (
	"slices"
	"time"
)

// Why is what an extra effect is explained by.
type Why string

// Explanations of an effect after the first. Only [Ledger.Happened] makes those that are marked possible.
const (
	LostRecord    Why = "the store lost its record"           // an Event
	Expired       Why = "its record was kept no longer"       // an Event
	Redriven      Why = "somebody asked for it"               // an Event
	HolderKilled  Why = "its process was killed in the run"   // an Event
	HolderStopped Why = "its process was stopped in the run"  // an Event
	StoreAway     Why = "the store did not answer in the run" // an Event
	HandlerFailed Why = "its handler failed after its effect" // the handler said so
	LostLease     Why = "the lease ended during the run"
	LostOutcome   Why = "the outcome could not be recorded before the lease ended"
)

// Explanations of a sending after the first.
const (
	RelayKilled   Why = "its relay was killed"                            // an Event
	LeaseStopped  Why = "its relay was stopped for longer than its lease" // an Event
	LeaseCrashed  Why = "the database crashed during its lease"           // an Event
	LeaseSlow     Why = "its relay was slower than its lease"
	AnswerRefused Why = "the broker refused it"
	AnswerUnknown Why = "its acknowledgement was lost"
)

// An Event is what a rig did to a process, a server or a record.
type Event struct {
	Why      Why       // what it may explain
	Holder   int       // the process by its ID, or the relay by its number, that it happened to; 0: to all
	ID       string    // the message that it happened to; "": to all
	From, To time.Time // before it began, and after it ended
}

// Happened tells the ledger an event. It explains at most one extra effect of each message.
func (l *Ledger) Happened(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// evidence is the events that may explain an effect of one message. Each is taken once.
type evidence struct {
	id     string
	events []Event
	taken  map[int]bool
}

// take takes an event of a kind that happened to a holder within a time. It returns the kind, or "" if there is none.
func (v *evidence) take(holder int, from, to time.Time, kinds ...Why) Why {
	for i, e := range v.events {
		if !v.taken[i] && slices.Contains(kinds, e.Why) && v.concerns(e, holder) && e.within(from, to) {
			v.taken[i] = true
			return e.Why
		}
	}
	return ""
}

func (v *evidence) concerns(e Event, holder int) bool {
	return (e.ID == "" || e.ID == v.id) && (e.Holder == 0 || e.Holder == holder)
}

// within says whether a part of the event was between two instants.
func (e Event) within(from, to time.Time) bool { return e.From.Before(to) && from.Before(e.To) }
