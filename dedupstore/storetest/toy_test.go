package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A toy is a store in memory, written for this test from the contract alone, that can break one rule.
type toy struct {
	broken string // the rule, or ""

	mu      sync.Mutex
	records map[string]*toyRecord
}

func newToy(broken string) *toy { return &toy{broken: broken, records: map[string]*toyRecord{}} }

type toyRecord struct {
	state                dedupstore.State
	owner                string
	fence, decided       uint64
	attempts, returned   int
	crashes              int
	started              bool
	settlers             []string
	fingerprint          dedupstore.Fingerprint
	trace                string
	outcome              dedupstore.Outcome
	first, lease, due    time.Time
	expires              time.Time
	granted              time.Time // when the last run was
	leaseSpan, retention time.Duration
}

// is tells whether the toy breaks the rule.
func (s *toy) is(rule string) bool { return s.broken == rule }

func (s *toy) name(k dedupstore.Key) string {
	if s.is("keys-that-collide") {
		return strings.Join([]string{k.Tenant, k.Group, k.Handler, k.ID}, ":")
	}
	if s.is("keys-without-the-handler") {
		k.Handler = "any"
	}
	return k.String()
}

// load returns the record, or nil if it is forgotten.
func (s *toy) load(k dedupstore.Key, now time.Time) *toyRecord {
	rec := s.records[s.name(k)]
	if rec == nil || !now.Before(rec.expires) && !s.is("no-ttl") {
		return nil
	}
	return rec
}

func (s *toy) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if err := r.Validate(); err != nil && !s.is("accepts-anything") {
		return dedupstore.Answer{}, err
	}
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return dedupstore.Answer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var rec toyRecord
	if known := s.load(r.Key, now); known != nil {
		rec = *known
	} else {
		rec = toyRecord{state: dedupstore.Absent, first: now}
	}
	if s.is("check-then-set") || s.is("batch-checks-then-sets") {
		s.mu.Unlock()
		<-time.After(time.Millisecond) // of virtual time: when all others have checked, too
		s.mu.Lock()
	}
	a := dedupstore.Answer{Found: rec.state, Fence: rec.fence, Age: now.Sub(rec.first), Trace: rec.trace}
	write := s.answer(&rec, r, now, &a)
	if a.Status == dedupstore.AcquiredRun || a.Status == dedupstore.AcquiredPublish {
		a.Claim = dedupstore.Claim{
			Key: r.Key, Owner: r.Owner, Fence: rec.fence, Attempt: rec.attempts, Returned: rec.returned, Lease: r.Lease,
			Retention: r.Retention, Holder: r.Holder,
		}
	}
	if a.Status == dedupstore.AcquiredPublish || a.Status == dedupstore.Done {
		a.Fence = rec.decided
		a.Outcome = s.copyOf(rec.outcome)
	}
	if write {
		s.records[s.name(r.Key)] = &rec
	}
	return a, nil
}

// answer decides in the order that Store.Claim documents, and says whether the record changed.
func (s *toy) answer(rec *toyRecord, r dedupstore.Request, now time.Time, a *dedupstore.Answer) bool {
	switch {
	case s.differs(rec.fingerprint, r.Fingerprint):
		a.Status = dedupstore.Mismatch
		if s.is("mismatch-touches-the-record") {
			rec.attempts++
		}
		if s.is("mismatch-renews-the-window") {
			rec.expires = now.Add(long)
		}
		return true
	case rec.state == dedupstore.Finished && s.superseded(rec, r):
		if !s.is("rerun-keeps-attempts") {
			rec.attempts = 0
		}
		if !s.is("rerun-keeps-returned") {
			rec.returned = 0
		}
		if !s.is("rerun-keeps-crashes") {
			rec.crashes = 0
		}
		if s.is("rerun-forgets-the-content") {
			rec.fingerprint = dedupstore.Fingerprint{}
		}
		before := rec.expires
		s.run(rec, r, now, a)
		if s.is("rerun-keeps-the-ttl") {
			rec.expires = before
		}
		return true
	case rec.state == dedupstore.Finished:
		a.Status = dedupstore.Done
		if s.is("done-sets-the-ttl") {
			rec.expires = now.Add(r.Retention)
		}
		return true
	}
	spent := rec.attempts >= r.MaxAttempts
	expired := !now.Before(rec.lease)
	suspect := r.SuspectAfter > 0 && s.crashed(rec) >= r.SuspectAfter
	if suspect && s.is("suspect-before-owner") || suspect && expired && s.is("suspect-before-its-end") {
		a.Status = dedupstore.Suspect
		return true
	}
	if s.is("attempts-before-owner") && rec.state == dedupstore.Running && expired && spent {
		return s.end(rec, r, now, a, dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true})
	}
	if rec.owner == r.Owner && !s.is("a-re-sent-claim-answers-busy") {
		switch rec.state {
		case dedupstore.Running:
			a.Status = dedupstore.AcquiredRun
			if s.is("a-re-sent-claim-takes-an-attempt") {
				rec.attempts++
			}
			if s.is("a-re-sent-claim-renews-the-lease") {
				rec.lease = now.Add(r.Lease)
			}
			if s.is("a-re-sent-claim-sets-the-ttl") {
				rec.expires = now.Add(r.Lease + r.Retention)
			}
			return true
		case dedupstore.Publishing:
			a.Status = dedupstore.AcquiredPublish
			if s.is("a-re-sent-claim-shortens-the-window") {
				rec.expires = rec.lease.Add(r.Retention)
			}
			return true
		}
	}
	late := slices.Contains(rec.settlers, r.Owner)
	switch {
	case s.is("a-late-claim-copy-takes-an-attempt"):
		late = false
	case s.is("a-late-claim-copy-takes-over"):
		late = late && rec.state == dedupstore.Retryable
	}
	live := !expired || now.Before(rec.due)
	if s.is("publish-without-a-lease") && rec.state == dedupstore.Publishing {
		live = false
	}
	switch {
	case late || live:
		a.Status, a.Wait = dedupstore.Busy, max(0, rec.lease.Sub(now), rec.due.Sub(now))
		if s.is("busy-sets-the-ttl") {
			rec.expires = now.Add(r.Retention)
		}
		return true
	case rec.state == dedupstore.Publishing && !s.is("publishing-runs-again"):
		before := rec.expires
		s.own(rec, r, now)
		switch {
		case s.is("publish-takeover-decides-anew"):
			rec.decided = rec.fence
		case s.is("publish-takeover-keeps-the-ttl"):
			rec.expires = before
		}
		a.Status = dedupstore.AcquiredPublish
		return true
	case rec.state == dedupstore.Running && r.ParkExpired && (rec.started || s.is("parks-what-never-started")):
		return s.end(rec, r, now, a, dedupstore.Outcome{Kind: dedupstore.Unknown})
	case spent && !s.is("attempts-never-spent"):
		spent := dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true, Reason: "attempts are spent"}
		return s.end(rec, r, now, a, spent)
	}
	if r.SuspectAfter > 0 && s.crashed(rec) >= r.SuspectAfter {
		a.Status = dedupstore.Suspect
		if s.is("suspect-loses-its-owner") {
			rec.fence++
		}
		if s.is("suspect-is-counted-again") {
			rec.crashes = s.crashed(rec)
		}
		return true
	}
	return s.run(rec, r, now, a)
}

func (s *toy) differs(f, g dedupstore.Fingerprint) bool {
	if s.is("schemes-compared") {
		return !f.IsZero() && !g.IsZero() && f != g
	}
	return f.Differs(g) && !s.is("content-not-compared")
}

func (s *toy) superseded(rec *toyRecord, r dedupstore.Request) bool {
	if s.is("rerun-of-any-fence") {
		return r.Rerun != 0 && rec.outcome.Kind != dedupstore.Succeeded
	}
	return r.Rerun != 0 && r.Rerun == rec.decided &&
		(rec.outcome.Kind != dedupstore.Succeeded || s.is("rerun-of-a-success"))
}

// own makes the claimer the owner.
func (s *toy) own(rec *toyRecord, r dedupstore.Request, now time.Time) {
	rec.owner, rec.leaseSpan, rec.retention = r.Owner, r.Lease, r.Retention
	rec.fence = max(rec.fence+1, uint64(now.UnixMicro()))
	if s.is("fence-without-a-clock") {
		rec.fence = uint64(rec.attempts) + 1
	}
	rec.lease, rec.due = now.Add(r.Lease), time.Time{}
	rec.expires = rec.lease.Add(r.Retention)
	if s.is("lease-erases-the-fence") {
		rec.expires = rec.lease
	}
	if s.is("retention-without-the-lease") {
		rec.expires = now.Add(r.Retention)
	}
}

func (s *toy) run(rec *toyRecord, r dedupstore.Request, now time.Time, a *dedupstore.Answer) bool {
	crash, before := rec.state == dedupstore.Running, rec.expires
	rec.crashes = s.crashed(rec)
	s.own(rec, r, now)
	if crash && s.is("run-takeover-keeps-the-ttl") {
		rec.expires = before
	}
	rec.state, rec.started, rec.trace, rec.granted = dedupstore.Running, false, r.Trace, now
	if !crash || !s.is("crashes-not-counted") {
		rec.attempts++
	}
	if f := rec.fingerprint; f.IsZero() || f.Scheme != r.Fingerprint.Scheme && !r.Fingerprint.IsZero() {
		rec.fingerprint = r.Fingerprint
	}
	if s.is("mark-before-process") {
		rec.state, rec.outcome = dedupstore.Finished, dedupstore.Outcome{Kind: dedupstore.Succeeded}
	}
	a.Status = dedupstore.AcquiredRun
	return true
}

// crashed is how many of the last runs crashed.
func (s *toy) crashed(rec *toyRecord) int {
	if rec.state == dedupstore.Running && !s.is("crashes-in-a-row-not-counted") {
		return rec.crashes + 1
	}
	return rec.crashes
}

// end ends what nobody owns; the claimer gets it to publish.
func (s *toy) end(
	rec *toyRecord, r dedupstore.Request, now time.Time, a *dedupstore.Answer, o dedupstore.Outcome,
) bool {
	s.own(rec, r, now)
	rec.state, rec.outcome, rec.decided = dedupstore.Publishing, o, rec.fence
	a.Status = dedupstore.AcquiredPublish
	if s.is("exhausted-without-an-owner") {
		rec.state, a.Status = dedupstore.Finished, dedupstore.Done
	}
	if s.is("exhausted-for-everybody") {
		rec.lease = now
	}
	return true
}

func (s *toy) copyOf(o dedupstore.Outcome) dedupstore.Outcome {
	if s.is("outcome-is-shared") {
		return o
	}
	o.Result = slices.Clone(o.Result)
	o.Produced = slices.Clone(o.Produced)
	for i, p := range o.Produced {
		header := map[string]string{}
		for name, value := range p.Header {
			header[name] = value
		}
		o.Produced[i].Header, o.Produced[i].Payload = header, slices.Clone(p.Payload)
		switch {
		case s.is("empty-payloads-become-nil") && len(p.Payload) == 0:
			o.Produced[i].Payload = nil
		case s.is("nil-payloads-become-empty") && p.Payload == nil:
			o.Produced[i].Payload = []byte{}
		}
	}
	return o
}

// held is what every settle and extend asks first.
func (s *toy) taken(rec *toyRecord, c dedupstore.Claim, ownerIgnored, fenceIgnored string) bool {
	return rec != nil && (rec.owner == c.Owner || s.is(ownerIgnored) && rec.owner != "") &&
		(rec.fence == c.Fence || s.is(fenceIgnored))
}

func (s *toy) extendOne(ctx context.Context, x dedupstore.Extension) error {
	if s.is("renewals-starve") {
		return errToyLocked
	}
	c, lease := x.Claim, x.Lease
	if err := c.Validate(); err != nil && !s.is("accepts-anything") {
		return err
	}
	if lease < time.Millisecond || lease > farthest {
		return &dedupstore.InvalidError{Field: "Extension.Lease", Problem: fmt.Sprintf("is %v", lease)}
	}
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	rec := s.load(c.Key, now)
	if !s.taken(rec, c, "owner-ignored-at-extend", "extend-ignores-fence") {
		return dedupstore.ErrClaimLost
	}
	if rec.state != dedupstore.Running && rec.state != dedupstore.Publishing ||
		s.is("expiry-revokes") && !now.Before(rec.lease) {
		return dedupstore.ErrClaimLost
	}
	rec.started = (x.Started || rec.started && !s.is("extend-forgets-the-start") || s.is("extend-starts")) &&
		!s.is("extend-never-starts")
	if s.is("extend-forgets-the-result") {
		rec.outcome.Result = nil
	}
	if s.is("extend-forgets-the-messages") {
		rec.outcome.Produced = nil
	}
	if end := now.Add(lease); end.After(rec.lease) || !s.is("extend-never-shortens") {
		rec.lease = end
	}
	if end := rec.lease.Add(c.Retention); !s.is("extend-forgets-the-ttl") &&
		(rec.state == dedupstore.Running || !s.is("publish-step-forgets-the-ttl")) {
		rec.expires = end
	}
	return nil
}
