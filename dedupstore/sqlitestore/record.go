package sqlitestore

import (
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// A record is a row of the table. Times are microseconds since 1970. Its methods are the protocol. They are called in
// the transaction that has the write lock; only decide is also called on a copy, to see whether a claim will be
// refused.
type record struct {
	number                     int64 // 0: there is no row
	key                        string
	state                      dedupstore.State
	owner                      string
	fence                      uint64
	attempts, returned, reruns int
	started                    bool
	lease, due, first, expires int64
	fingerprint                dedupstore.Fingerprint
	settled                    []string
	trace                      string
	decided                    uint64 // the fence under which the outcome was decided; of a run, see markSQL
	outcome                    dedupstore.Outcome
	holder                     string
	took                       sql.NullInt64  // milliseconds, of the last run
	history                    sql.NullString // JSON: the attempts before it
}

// forget makes a record that has expired like one that never was, but for the fence, which has to grow.
func (rec *record) forget(now int64) {
	if rec.number == 0 || now >= rec.expires {
		*rec = record{number: rec.number, key: rec.key, state: dedupstore.Absent, fence: rec.fence, first: now}
	}
}

// claim answers a claim, and reports whether the record has changed.
func (rec *record) claim(r dedupstore.Request, now int64) (a dedupstore.Answer, changed bool) {
	before := rec.fence
	a = dedupstore.Answer{Found: rec.state, Fence: rec.fence, Age: sqlstore.Duration(now - rec.first), Trace: rec.trace}
	if rec.state == dedupstore.Absent {
		a.Fence = 0
	}
	a.Status = rec.decide(r, now)
	switch a.Status {
	case dedupstore.Busy:
		a.Wait = sqlstore.Duration(max(0, rec.lease-now, rec.due-now))
	case dedupstore.Done, dedupstore.AcquiredPublish:
		a.Fence, a.Outcome = rec.decided, rec.outcome
	}
	if a.Status == dedupstore.AcquiredRun || a.Status == dedupstore.AcquiredPublish {
		a.Claim = dedupstore.Claim{
			Key: r.Key, Owner: r.Owner, Fence: rec.fence, Attempt: rec.attempts, Returned: rec.returned,
			Lease: r.Lease, Retention: r.Retention, Holder: r.Holder,
		}
	}
	if rec.fence == before { // an owner that only asks again changes nothing
		return a, false
	}
	rec.expires = rec.lease + sqlstore.Micros(r.Retention)
	return a, true
}

// decide answers a claim in the order that dedupstore.Store documents.
func (rec *record) decide(r dedupstore.Request, now int64) dedupstore.Status {
	switch {
	case rec.fingerprint.Differs(r.Fingerprint):
		return dedupstore.Mismatch
	case rec.state == dedupstore.Finished:
		if r.Rerun == 0 || r.Rerun != rec.decided || rec.outcome.Kind == dedupstore.Succeeded {
			return dedupstore.Done
		}
		rec.again()
		return rec.run(r, now)
	case rec.owner == r.Owner && rec.state == dedupstore.Running:
		return dedupstore.AcquiredRun
	case rec.owner == r.Owner && rec.state == dedupstore.Publishing:
		return dedupstore.AcquiredPublish
	case slices.Contains(rec.settled, r.Owner), now < rec.lease, now < rec.due:
		return dedupstore.Busy
	case rec.state == dedupstore.Publishing:
		rec.own(r, now)
		return dedupstore.AcquiredPublish
	case rec.state == dedupstore.Running && rec.decided == rec.fence: // markSQL
		return rec.end(r, now, dedupstore.Outcome{Kind: dedupstore.Unknown,
			Reason: "the handler committed the transaction of its run by itself, without an outcome"})
	case rec.state == dedupstore.Running && rec.started && r.ParkExpired:
		return rec.end(r, now, dedupstore.Outcome{
			Kind: dedupstore.Unknown, Reason: "the lease of a started run expired"})
	case rec.attempts >= r.MaxAttempts:
		reason := fmt.Sprintf("%d of %d attempts spent", rec.attempts, r.MaxAttempts)
		return rec.end(r, now, dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: reason})
	}
	return rec.run(r, now)
}

// again begins the attempts anew, on request.
func (rec *record) again() { rec.attempts, rec.returned, rec.reruns = 0, 0, rec.reruns+1 }

func (rec *record) run(r dedupstore.Request, now int64) dedupstore.Status {
	rec.own(r, now)
	rec.state, rec.outcome, rec.trace = dedupstore.Running, dedupstore.Outcome{}, r.Trace
	rec.attempts++
	rec.started = false
	if rec.fingerprint.IsZero() || !r.Fingerprint.IsZero() {
		rec.fingerprint = r.Fingerprint
	}
	return dedupstore.AcquiredRun
}

func (rec *record) end(r dedupstore.Request, now int64, o dedupstore.Outcome) dedupstore.Status {
	rec.own(r, now)
	rec.state, rec.outcome, rec.decided = dedupstore.Publishing, o, rec.fence
	return dedupstore.AcquiredPublish
}

func (rec *record) own(r dedupstore.Request, now int64) {
	if rec.state != dedupstore.Absent {
		rec.moveOn()
	}
	rec.owner, rec.holder, rec.took = r.Owner, r.Holder, sql.NullInt64{}
	rec.fence = max(rec.fence+1, uint64(max(now, 0)))
	rec.lease, rec.due = now+sqlstore.Micros(r.Lease), 0
}

func (rec *record) heldBy(c dedupstore.Claim) bool {
	return rec.owner == c.Owner && rec.fence == c.Fence
}

// settledBy reports whether an owner has ended its run.
func (rec *record) settledBy(owner string) bool { return slices.Contains(rec.settled, owner) }

func (rec *record) extend(x dedupstore.Extension, now int64) error {
	if !rec.heldBy(x.Claim) || rec.state != dedupstore.Running && rec.state != dedupstore.Publishing {
		return dedupstore.ErrClaimLost
	}
	rec.started = rec.started || x.Started && rec.state == dedupstore.Running
	rec.lease = now + sqlstore.Micros(x.Lease)
	rec.expires = rec.lease + sqlstore.Micros(x.Claim.Retention)
	return nil
}

// settle ends a step, and reports whether the record has changed. The settlement is valid.
func (rec *record) settle(c dedupstore.Claim, s dedupstore.Settlement, now int64) (changed bool, err error) {
	switch s := s.(type) {
	case dedupstore.Finish:
		return rec.finish(c, s, now)
	case dedupstore.Release:
		return rec.release(c, s, now)
	case dedupstore.Published:
		return rec.published(c, s, now)
	}
	panic("unreachable: validated before")
}

func (rec *record) finish(c dedupstore.Claim, s dedupstore.Finish, now int64) (changed bool, err error) {
	switch {
	case !rec.heldBy(c) || rec.state == dedupstore.Retryable:
		return false, dedupstore.ErrClaimLost
	case rec.state == dedupstore.Running:
	case !rec.settledBy(c.Owner), // the outcome is not this owner's: it only got it to publish
		s.Outcome.Kind != rec.outcome.Kind: // Join has committed a success: no dead letter comes after it
		return false, dedupstore.ErrClaimLost
	case len(s.Outcome.Produced) > 0 && len(rec.outcome.Produced) == 0:
		return false, sqlstore.ErrJoinedOutputs
	default:
		return false, nil // repeated
	}
	rec.ends(c.Owner, s.Took)
	rec.outcome, rec.decided = s.Outcome, rec.fence
	if s.Publishes() {
		rec.state, rec.lease = dedupstore.Publishing, now+sqlstore.Micros(c.Lease)
		rec.expires = rec.lease + sqlstore.Micros(s.Retention)
		return true, nil
	}
	rec.close(now + sqlstore.Micros(s.Retention))
	return true, nil
}

func (rec *record) release(c dedupstore.Claim, s dedupstore.Release, now int64) (changed bool, err error) {
	switch {
	case rec.state == dedupstore.Retryable && rec.settledBy(c.Owner):
		return false, nil // repeated
	case !rec.heldBy(c) || rec.state != dedupstore.Running:
		return false, dedupstore.ErrClaimLost
	}
	rec.ends(c.Owner, s.Took)
	rec.state, rec.owner, rec.started = dedupstore.Retryable, "", false
	rec.lease, rec.due = 0, now+sqlstore.Micros(s.Delay)
	if s.Uncounted {
		rec.attempts--
		rec.returned++
	}
	rec.outcome = dedupstore.Outcome{Reason: s.Reason}
	rec.expires = rec.due + sqlstore.Micros(c.Retention)
	return true, nil
}

func (rec *record) published(c dedupstore.Claim, s dedupstore.Published, now int64) (changed bool, err error) {
	switch {
	case rec.heldBy(c) && rec.state == dedupstore.Finished:
		return false, nil // repeated
	case !rec.heldBy(c) || rec.state != dedupstore.Publishing:
		return false, dedupstore.ErrClaimLost
	}
	if len(rec.outcome.Produced) == 0 {
		rec.outcome.Produced = s.Produced
	}
	rec.close(now + sqlstore.Micros(s.Retention))
	return true, nil
}

func (rec *record) close(expires int64) {
	rec.state, rec.lease = dedupstore.Finished, 0
	rec.outcome.Produced = dedupstore.Stubs(rec.outcome.Produced)
	rec.expires = expires
}

// ends notes how a run ended. A duration of zero is not known.
func (rec *record) ends(owner string, took time.Duration) {
	rec.took = sql.NullInt64{Int64: took.Milliseconds(), Valid: took > 0}
	rec.settled = append(rec.settled, owner)
	if n := len(rec.settled); n > sqlstore.RememberedSettlers {
		rec.settled = rec.settled[n-sqlstore.RememberedSettlers:]
	}
}

// clock is the store's: this machine's, in microseconds.
func clock() int64 { return time.Now().UnixMicro() }
