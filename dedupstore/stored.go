package dedupstore

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Stored is a record of a store that reads it, decides, and writes it if nobody else did meanwhile. Its methods are
// the protocol. They change nothing, and take what Validate accepts. Now is the store's clock. They return the record
// to write, and nil if it stays as it is. Slices may be shared with the record before and with arguments.
//
// The zero value is a key without a record. A record whose time has come counts as none, but for its fence.
type Stored struct {
	State       State
	Owner       string // of the last claim; empty when Retryable
	Fence       uint64
	Attempts    int
	Returned    int
	Reruns      int
	Crashes     int // runs before the last one, in a row, whose leases expired: see Request.SuspectAfter
	Started     bool
	Lease       time.Time // when it ends; zero without one
	Due         time.Time // when it may run again; zero: at once
	Expires     time.Time // when the record is forgotten
	Fingerprint Fingerprint
	Settled     []string // the last owners that settled it, at most MaxSettled
	Trace       string
	Outcome     Outcome // of a Retryable record only the reason
	Decided     uint64  // the fence under which the outcome was decided

	First, Claimed, Ended time.Time // as in Record
	Holder                string
	History               []Attempt // at most MaxHistory
	Duplicates            int
	LastDuplicate         time.Time
}

// MaxSettled is how many owners that settled a record it remembers, to recognise late copies of their claims.
const MaxSettled = 4

// operator is among the Settled of a record whose outcome Complete decided: the last one, until a run is settled. It is
// too short for the token of an owner.
const operator = "operator"

// maxPastReason is how many bytes the history has of a reason.
const maxPastReason = 96

// at is the record as it counts at a time.
func (s Stored) at(now time.Time) Stored {
	if s.State == "" || s.State == Absent || !now.Before(s.Expires) {
		return Stored{State: Absent, Fence: s.Fence, First: now}
	}
	return s
}

// Claim answers a claim.
func (s Stored) Claim(r Request, now time.Time) (next *Stored, a Answer) {
	s = s.at(now)
	before := s.Fence
	a = Answer{Found: s.State, Fence: s.Fence, Age: max(0, now.Sub(s.First)), Trace: s.Trace}
	a.Status = s.decide(r, now)
	switch a.Status {
	case Busy:
		a.Wait = max(0, s.Lease.Sub(now), s.Due.Sub(now))
	case Done, AcquiredPublish:
		a.Fence, a.Outcome = s.Decided, s.Outcome
	}
	if a.Status == AcquiredRun || a.Status == AcquiredPublish {
		a.Claim = Claim{
			Key: r.Key, Owner: r.Owner, Fence: s.Fence, Attempt: s.Attempts, Returned: s.Returned,
			Lease: r.Lease, Retention: r.Retention, Holder: r.Holder,
		}
	}
	if s.Fence == before { // an owner that only asks again changes nothing
		return nil, a
	}
	s.Expires = s.Lease.Add(r.Retention)
	return new(s), a // a refusal allocates nothing
}

// decide answers a claim in the order that Store.Claim documents.
func (s *Stored) decide(r Request, now time.Time) Status {
	switch {
	case s.Fingerprint.Differs(r.Fingerprint):
		return Mismatch
	case s.State == Finished:
		if r.Rerun == 0 || r.Rerun != s.Decided || s.Outcome.Kind == Succeeded {
			return Done
		}
		s.again()
		return s.run(r, now)
	case s.Owner == r.Owner && s.State == Running:
		return AcquiredRun
	case s.Owner == r.Owner && s.State == Publishing:
		return AcquiredPublish
	case slices.Contains(s.Settled, r.Owner), now.Before(s.Lease), now.Before(s.Due):
		return Busy
	case s.State == Publishing:
		s.own(r, now)
		return AcquiredPublish
	case s.State == Running && s.Started && r.ParkExpired:
		return s.end(r, now, Outcome{Kind: Unknown, Reason: "the lease of a started run expired"})
	case s.Attempts >= r.MaxAttempts:
		reason := fmt.Sprintf("%d of %d attempts spent", s.Attempts, r.MaxAttempts)
		return s.end(r, now, Outcome{Kind: Failed, Exhausted: true, Reason: reason})
	case r.SuspectAfter > 0 && s.crashed() >= r.SuspectAfter:
		return Suspect
	}
	return s.run(r, now)
}

// again begins the attempts anew, on request.
func (s *Stored) again() { s.Attempts, s.Returned, s.Crashes, s.Reruns = 0, 0, 0, s.Reruns+1 }

// crashed counts the last runs that crashed, with that of an expired lease.
func (s *Stored) crashed() int {
	if s.State == Running {
		return s.Crashes + 1
	}
	return s.Crashes
}

func (s *Stored) run(r Request, now time.Time) Status {
	s.Crashes = s.crashed()
	s.own(r, now)
	s.State, s.Outcome, s.Trace, s.Started = Running, Outcome{}, r.Trace, false
	s.Attempts++
	if s.Fingerprint.IsZero() || !r.Fingerprint.IsZero() {
		s.Fingerprint = r.Fingerprint
	}
	return AcquiredRun
}

func (s *Stored) end(r Request, now time.Time, o Outcome) Status {
	s.own(r, now)
	s.State, s.Outcome, s.Decided = Publishing, o, s.Fence
	return AcquiredPublish
}

func (s *Stored) own(r Request, now time.Time) {
	if s.State != Absent {
		reason := s.Outcome.Reason[:min(len(s.Outcome.Reason), maxPastReason)]
		past := Attempt{
			Claimed: s.Claimed, Ended: s.Ended, Holder: s.Holder, Reason: strings.ToValidUTF8(reason, ""),
		}
		kept := s.History[max(0, len(s.History)+1-MaxHistory):]
		s.History = append(slices.Clone(kept), past)
	}
	s.Owner, s.Holder, s.Claimed, s.Ended = r.Owner, r.Holder, now, time.Time{}
	s.Fence = max(s.Fence+1, uint64(max(now.UnixMicro(), 0)))
	s.Lease, s.Due = now.Add(r.Lease), time.Time{}
}

func (s *Stored) ownedBy(c Claim) bool { return s.Owner == c.Owner && s.Fence == c.Fence }

// Extend renews a lease.
func (s Stored) Extend(x Extension, now time.Time) (next *Stored, err error) {
	s = s.at(now)
	if !s.ownedBy(x.Claim) || s.State != Running && s.State != Publishing {
		return nil, ErrClaimLost
	}
	s.Started = s.Started || x.Started && s.State == Running
	s.Lease = now.Add(x.Lease)
	s.Expires = s.Lease.Add(x.Claim.Retention)
	return &s, nil
}

// Settle ends a step.
func (s Stored) Settle(c Claim, settlement Settlement, now time.Time) (next *Stored, err error) {
	s = s.at(now)
	var changed bool
	switch settlement := settlement.(type) {
	case Finish:
		changed, err = s.finish(c, settlement, now)
	case Release:
		changed, err = s.release(c, settlement, now)
	case Published:
		changed, err = s.published(c, settlement, now)
	default:
		err = ValidateSettlement(settlement)
	}
	if !changed {
		return nil, err
	}
	return &s, nil
}

func (s *Stored) finish(c Claim, f Finish, now time.Time) (changed bool, err error) {
	switch {
	case !s.ownedBy(c) || s.State == Retryable:
		return false, ErrClaimLost
	case s.State != Running && slices.Contains(s.Settled, c.Owner):
		return false, nil // repeated
	case s.State != Running: // the outcome is not this owner's: it only got it to publish
		return false, ErrClaimLost
	}
	s.settle(c.Owner, f.Took)
	s.Outcome, s.Decided = f.Outcome, s.Fence
	if f.Publishes() {
		s.State, s.Lease = Publishing, now.Add(c.Lease)
		s.Expires = s.Lease.Add(f.Retention)
		return true, nil
	}
	s.close(now.Add(f.Retention))
	return true, nil
}

func (s *Stored) release(c Claim, r Release, now time.Time) (changed bool, err error) {
	switch {
	case s.State == Retryable && slices.Contains(s.Settled, c.Owner):
		return false, nil // repeated
	case !s.ownedBy(c) || s.State != Running:
		return false, ErrClaimLost
	}
	s.settle(c.Owner, r.Took)
	s.State, s.Owner, s.Started = Retryable, "", false
	s.Lease = time.Time{}
	if r.Delay > 0 { // else it is due at once, whatever the next one takes for the time
		s.Due = now.Add(r.Delay)
	}
	if r.Uncounted {
		s.Attempts--
		s.Returned++
	} else {
		s.Crashes = 0
	}
	s.Outcome = Outcome{Reason: r.Reason}
	s.Expires = now.Add(r.Delay + c.Retention)
	return true, nil
}

func (s *Stored) published(c Claim, p Published, now time.Time) (changed bool, err error) {
	switch {
	case !s.ownedBy(c) || s.State != Publishing && s.State != Finished:
		return false, ErrClaimLost
	case s.State == Finished:
		return false, nil // repeated
	}
	if len(s.Outcome.Produced) == 0 {
		s.Outcome.Produced = p.Produced
	}
	s.close(now.Add(p.Retention))
	return true, nil
}

func (s *Stored) close(expires time.Time) {
	s.State, s.Lease, s.Expires = Finished, time.Time{}, expires
	s.Outcome.Produced = Stubs(s.Outcome.Produced)
}

func (s *Stored) settle(owner string, took time.Duration) {
	if took > 0 {
		s.Ended = s.Claimed.Add(took)
	}
	s.settledBy(owner)
}

func (s *Stored) settledBy(owner string) {
	kept := s.Settled[max(0, len(s.Settled)+1-MaxSettled):]
	s.Settled = append(slices.Clone(kept), owner)
}

// Look is what the record of a key says to people. Its slices are shared with the record.
func (s Stored) Look(key Key, now time.Time) Record {
	if s = s.at(now); s.State == Absent {
		return Record{Key: key, State: Absent}
	}
	seen := Record{
		Key: key, State: s.State, Started: s.Started && s.State == Running, Fence: s.Fence,
		Attempts: s.Attempts, Returned: s.Returned, Reruns: s.Reruns,
		First: s.First, Claimed: s.Claimed, Ended: s.Ended, Expires: s.Expires, Holder: s.Holder, Trace: s.Trace,
		History: s.History, Outcome: s.Outcome, Duplicates: s.Duplicates, LastDuplicate: s.LastDuplicate,
	}
	seen.Outcome.Produced = Stubs(s.Outcome.Produced)
	switch s.State {
	case Running:
		seen.Until, seen.Crashes = s.Lease, s.Crashes
	case Retryable:
		seen.Until, seen.Crashes = s.Due, s.Crashes
	case Publishing:
		seen.Until, seen.Decided = s.Lease, s.Decided
	case Finished:
		seen.Decided = s.Decided
		seen.ByOperator = len(s.Settled) > 0 && s.Settled[len(s.Settled)-1] == operator
	}
	return seen
}

// Change makes a change, or refuses it as [Refuse] does. If next and err are nil, remove the record.
func (s Stored) Change(seen Record, c Change, now time.Time) (next *Stored, err error) {
	if err := Refuse(c, seen, s.Look(seen.Key, now), now); err != nil {
		return nil, err
	}
	switch c := c.(type) {
	case Rerun:
		s.again()
		s.State, s.Owner, s.Started = Retryable, "", false
		s.Outcome = Outcome{Reason: s.Outcome.Reason}
		return &s, nil
	case Complete:
		stubs := s.Outcome.Produced
		s.Outcome = c.Outcome
		s.Outcome.Produced = stubs
		s.settledBy(operator)
		return &s, nil
	}
	return nil, nil // Forget
}

// Note counts duplicates.
func (s Stored) Note(d Duplicates, now time.Time) (next *Stored) {
	if s = s.at(now); s.State == Absent {
		return nil
	}
	s.Duplicates, s.LastDuplicate = s.Duplicates+d.Count, d.Last
	return &s
}
