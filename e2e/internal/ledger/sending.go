package ledger

import (
	"slices"
	"time"
)

// A Sending is one time that a relay sent a message.
type Sending struct {
	Relay    int
	Leased   time.Time // when the relay began to lease the message
	Sent     time.Time
	Answered time.Time // zero: the relay did not get to note it
	Answer   Why       // "": acknowledged
	Settled  time.Time // when the store had confirmed that it is published; zero: the relay did not get to note it
}

// A fate is what happened to a sending: its lease ended, or its answer was not good. It is an event: it explains one
// more sending of the message.
type fate struct {
	relay int
	since time.Time // of the lease, or of the sending
	why   Why
}

// A sender knows the rules by which relays send messages.
type sender struct {
	lease  time.Duration
	events []Event
}

// explain says why a message was sent again, after an earlier sending; no fate if nothing explains it. Unless the
// database forgot the lease of the earlier one, or its answer was not good, that lease must have ended, or the later
// one's.
func (s sender) explain(before, again Sending) fate {
	switch {
	case before.Answer != "":
		return fate{before.Relay, before.Sent, before.Answer}
	case s.crashed(before, again):
		return fate{before.Relay, before.Leased, LeaseCrashed}
	case again.Sent.Sub(again.Leased) > s.lease:
		return s.late(again.Relay, again.Leased, again.Sent)
	case !before.Settled.IsZero() && before.Settled.Sub(before.Leased) > s.lease:
		return s.late(before.Relay, before.Leased, before.Settled)
	case before.Settled.IsZero() && again.Sent.Sub(before.Leased) > s.lease:
		if s.happened(RelayKilled, before.Relay, before.Sent, again.Sent) {
			return fate{before.Relay, before.Leased, RelayKilled}
		}
		return s.late(before.Relay, before.Leased, again.Sent)
	}
	return fate{}
}

// crashed says whether the database crashed after the lease of a sending began, and before that was settled.
func (s sender) crashed(before, again Sending) bool {
	end := again.Sent
	if !before.Settled.IsZero() && before.Settled.Before(end) {
		end = before.Settled
	}
	return s.happened(LeaseCrashed, before.Relay, before.Leased, end)
}

// late says why a lease ended before what it was for.
func (s sender) late(relay int, leased, to time.Time) fate {
	if s.happened(LeaseStopped, relay, leased, to) {
		return fate{relay, leased, LeaseStopped}
	}
	return fate{relay, leased, LeaseSlow}
}

func (s sender) happened(why Why, relay int, from, to time.Time) bool {
	return slices.ContainsFunc(s.events, func(e Event) bool {
		return e.Why == why && (e.Holder == 0 || e.Holder == relay) && e.within(from, to)
	})
}

// again says why a message was sent once more. Each earlier sending must allow it, and the fate of one of them must not
// have explained another sending. If nothing explains it, again returns a sending that forbids it.
func (s sender) again(before []Sending, again Sending, taken map[fate]bool) (why Why, forbids Sending) {
	var fates []fate
	for _, b := range before {
		f := s.explain(b, again)
		if f.why == "" {
			return "", b
		}
		fates = append(fates, f)
	}
	for _, f := range slices.Backward(fates) {
		if !taken[f] {
			taken[f] = true
			return f.why, Sending{}
		}
	}
	return "", before[len(before)-1]
}
