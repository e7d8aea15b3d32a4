package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

func (s *toy) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil && !s.is("accepts-any-settlement") {
		return err
	}
	if err := ctx.Err(); err != nil && !s.is("ignores-the-context") {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	rec := s.load(c.Key, now)
	if rec != nil && s.is("expiry-revokes") && rec.state == dedupstore.Running && !now.Before(rec.lease) {
		return dedupstore.ErrClaimLost
	}
	switch settlement := settlement.(type) {
	case dedupstore.Finish:
		return s.finish(rec, c, settlement, now)
	case dedupstore.Release:
		return s.release(rec, c, settlement, now)
	case dedupstore.Published:
		return s.published(rec, c, settlement, now)
	}
	return nil
}

func (s *toy) finish(rec *toyRecord, c dedupstore.Claim, f dedupstore.Finish, now time.Time) error {
	if rec == nil && s.is("settle-starts-a-record") {
		rec = &toyRecord{state: dedupstore.Running, owner: c.Owner, fence: c.Fence, first: now}
		s.records[s.name(c.Key)] = rec
	}
	if !s.taken(rec, c, "owner-ignored-at-finish", "settle-ignores-fence") || rec.state == dedupstore.Retryable {
		return dedupstore.ErrClaimLost
	}
	if rec.state != dedupstore.Running {
		switch {
		case s.is("a-repeated-finish-is-refused"),
			!slices.Contains(rec.settlers, c.Owner) && !s.is("publisher-may-finish"):
			return dedupstore.ErrClaimLost
		case s.is("a-repeated-finish-renews-the-window"):
			rec.expires = now.Add(f.Retention)
		case s.is("second-finish-decides"):
			rec.outcome.Kind = f.Outcome.Kind
		}
		return nil
	}
	rec.settlers = s.remembering(rec.settlers, c.Owner)
	rec.outcome, rec.decided = s.over(rec.outcome, s.copyOf(f.Outcome)), rec.fence
	if f.Publishes() && !s.is("done-before-published") && !(f.Withheld && s.is("withheld-is-done")) {
		rec.state = dedupstore.Publishing
		if !s.is("publish-lease-is-the-run's") {
			rec.lease = now.Add(c.Lease)
		}
		rec.expires = rec.lease.Add(f.Retention)
		return nil
	}
	s.conclude(rec, f.Retention, now)
	return nil
}

// over is the new outcome, with what stays of the old one in stores that only write what is not empty.
func (s *toy) over(old, o dedupstore.Outcome) dedupstore.Outcome {
	switch {
	case s.is("old-exhausted-stays"):
		o.Exhausted = o.Exhausted || old.Exhausted
	case s.is("old-reason-stays") && o.Reason == "":
		o.Reason = old.Reason
	case s.is("old-result-stays") && len(o.Result) == 0:
		o.Result = old.Result
	case s.is("old-truncated-stays"):
		o.Truncated = o.Truncated || old.Truncated
	case s.is("old-produced-stays") && len(o.Produced) == 0:
		o.Produced = old.Produced
	}
	return o
}

// conclude makes the record DONE.
func (s *toy) conclude(rec *toyRecord, window time.Duration, now time.Time) {
	rec.state, rec.lease = dedupstore.Finished, time.Time{}
	rec.expires = now.Add(window)
	if s.is("window-counted-from-the-claim") {
		rec.expires = rec.granted.Add(window)
	}
	if s.is("window-is-the-claim's") {
		rec.expires = now.Add(rec.retention)
	}
	switch {
	case s.is("done-keeps-no-ids"):
		rec.outcome.Produced = nil
	case !s.is("done-keeps-the-bytes"):
		rec.outcome.Produced = dedupstore.Stubs(rec.outcome.Produced)
	}
}

func (s *toy) remembering(settlers []string, owner string) []string {
	if s.is("only-the-last-settler-is-known") {
		return []string{owner}
	}
	return append(slices.Clone(settlers), owner)
}

func (s *toy) release(rec *toyRecord, c dedupstore.Claim, r dedupstore.Release, now time.Time) error {
	if rec != nil && rec.state == dedupstore.Retryable && slices.Contains(rec.settlers, c.Owner) {
		switch {
		case s.is("a-repeated-release-is-refused"):
			return dedupstore.ErrClaimLost
		case s.is("a-repeated-release-counts-twice") && r.Uncounted:
			rec.attempts--
		case s.is("a-repeated-release-delays-again"):
			rec.due = now.Add(r.Delay)
		}
		return nil
	}
	if !s.taken(rec, c, "owner-ignored-at-release", "settle-ignores-fence") {
		return dedupstore.ErrClaimLost
	}
	if rec.state != dedupstore.Running && !s.is("release-reopens-an-outcome") {
		return dedupstore.ErrClaimLost
	}
	rec.settlers = s.remembering(rec.settlers, c.Owner)
	rec.state, rec.owner, rec.lease, rec.due = dedupstore.Retryable, "", time.Time{}, now.Add(r.Delay)
	rec.expires = rec.due.Add(c.Retention)
	switch {
	case s.is("release-forgets-attempts"):
		rec.attempts = 0
	case s.is("release-forgets-returned"):
		rec.returned = 0
	case s.is("release-forgets-the-delay"):
		rec.due = now
	case s.is("retention-without-the-delay"):
		rec.expires = now.Add(c.Retention)
	}
	if r.Uncounted && !s.is("uncounted-counts") {
		rec.attempts--
		if !s.is("returned-attempts-are-forgotten") {
			rec.returned++
		}
	}
	if !r.Uncounted && !s.is("release-keeps-crashes") || r.Uncounted && s.is("uncounted-release-clears-crashes") {
		rec.crashes = 0
	}
	return nil
}

func (s *toy) published(rec *toyRecord, c dedupstore.Claim, p dedupstore.Published, now time.Time) error {
	if !s.taken(rec, c, "owner-ignored-at-published", "settle-ignores-fence") {
		return dedupstore.ErrClaimLost
	}
	switch rec.state {
	case dedupstore.Publishing:
	case dedupstore.Finished:
		return nil
	default:
		if !s.is("published-without-an-outcome") {
			return dedupstore.ErrClaimLost
		}
	}
	if (len(rec.outcome.Produced) == 0 || s.is("published-replaces-what")) && !s.is("published-forgets-what") {
		rec.outcome.Produced = p.Produced
	}
	s.conclude(rec, p.Retention, now)
	return nil
}

// TTL is how much longer the record is kept, and false if that is for ever.
func (s *toy) TTL(k dedupstore.Key) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.records[s.name(k)]
	if rec == nil || s.is("no-ttl") {
		return 0, false
	}
	return time.Until(rec.expires), true
}
