package storetest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// brokenBatches are rules of batches, as broken is of single operations.
var brokenBatches = map[string]string{
	"batch-results-in-another-order":         "batch/results-are-in-order",
	"batch-answers-first-claims-only":        "batch/claims-are-answered-as-by-Claim",
	"batch-parks-nothing":                    "batch/claims-are-answered-as-by-Claim",
	"batch-forgets-reruns":                   "batch/claims-are-answered-as-by-Claim",
	"batch-forgets-fingerprints":             "batch/claims-are-answered-as-by-Claim",
	"batch-stops-at-an-error":                "batch/errors-are-of-one-claim",
	"batch-leaves-errors-out":                "batch/errors-are-of-one-claim",
	"batch-equal-keys-from-the-end":          "batch/equal-keys-in-the-order-of-the-slice",
	"batch-equal-keys-share-an-answer":       "batch/equal-keys-in-the-order-of-the-slice",
	"batch-looks-before-it-claims":           "batch/duplicates-see-the-rerun-before-them",
	"batch-owner-twice-is-busy":              "batch/one-owner-twice",
	"batch-answers-owners":                   "batch/one-owner-of-many-keys",
	"batch-duplicates-share-bytes":           "batch/outcomes-share-no-bytes",
	"batch-mints-owners":                     "batch/repeated-claims-change-nothing",
	"batch-of-at-most-512":                   "batch/thousand",
	"batch-of-at-most-512-settlings":         "batch/thousand",
	"batch-checks-then-sets":                 "batch/one-run-of-many-batches",
	"batch-extends-all-as-the-first":         "batch/extends-each-as-it-is-asked",
	"batch-extends-only-the-first":           "batch/extends-each-as-it-is-asked",
	"batch-extends-stop-at-an-error":         "batch/errors-are-of-one-extension",
	"batch-extend-errors-are-joined":         "batch/errors-are-of-one-extension",
	"batch-extends-hide-lost-claims":         "batch/errors-are-of-one-extension",
	"batch-finishes-whatever-is-asked":       "batch/settles-each-as-it-is-asked",
	"batch-never-publishes":                  "batch/settles-each-as-it-is-asked",
	"batch-settles-stop-at-an-error":         "batch/errors-are-of-one-settling",
	"batch-settle-errors-are-joined":         "batch/errors-are-of-one-settling",
	"batch-settles-hide-lost-claims":         "batch/errors-are-of-one-settling",
	"batch-settles-from-the-end":             "batch/settlings-of-equal-keys-in-the-order-of-the-slice",
	"batch-repeated-settlings-are-refused":   "batch/repeated-settlings-change-nothing",
	"batch-of-nothing-has-a-result":          "batch/of-nothing",
	"batch-of-nothing-has-an-error":          "batch/of-nothing",
	"batch-drops-traces":                     "batch/claims-are-kept-as-asked",
	"batch-shortens-retentions":              "batch/claims-are-kept-as-asked",
	"batch-shortens-leases":                  "batch/claims-are-kept-as-asked",
	"batch-shortens-windows":                 "batch/settlings-are-kept-as-asked",
	"batch-shortens-publishing-windows":      "batch/settlings-are-kept-as-asked",
	"batch-shortens-published-windows":       "batch/settlings-are-kept-as-asked",
	"batch-publishes-without-a-lease":        "batch/settlings-are-kept-as-asked",
	"batch-counts-what-is-given-back":        "batch/settlings-are-kept-as-asked",
	"batch-forgets-what-was-released":        "batch/settlings-are-kept-as-asked",
	"batch-ended-context-is-no-error":        "batch/ended-context-leaves-no-result-out",
	"batch-ended-context-leaves-results-out": "batch/ended-context-leaves-no-result-out",
	"batch-ended-context-loses-claims":       "batch/ended-context-leaves-no-result-out",
	"batch-ended-settles-are-lost":           "batch/ended-context-leaves-no-result-out",
	"batch-guesses-what-is-unknown":          "batch/ended-in-the-middle",
}

// Claim claims one after the other, and breaks the rule, if it is one of batches.
func (s *toy) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	order := numbers(len(requests), s.is("batch-equal-keys-from-the-end"))
	if s.is("batch-looks-before-it-claims") {
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(requests[i].Rerun, requests[j].Rerun) })
	}
	first := map[dedupstore.Key]dedupstore.ClaimResult{}
	for _, i := range order {
		if s.is("batch-guesses-what-is-unknown") {
			<-time.After(time.Millisecond) // of virtual time: for the context to end in the middle
		}
		r := s.misread(requests[i])
		a, err := s.claimOne(ctx, r)
		if known, ok := first[r.Key]; !ok {
			first[r.Key] = dedupstore.ClaimResult{Answer: a, Err: err}
		} else if s.is("batch-equal-keys-share-an-answer") ||
			s.is("batch-duplicates-share-bytes") && a.Status == dedupstore.Done {
			a = known.Answer
		} else if s.is("batch-owner-twice-is-busy") {
			a.Status = dedupstore.Busy
		}
		if s.is("batch-mints-owners") && a.Status == dedupstore.AcquiredRun {
			a.Claim.Owner = requests[i].Owner
		}
		results[i] = dedupstore.ClaimResult{Answer: a, Err: err}
		if err != nil && s.is("batch-stops-at-an-error") {
			for j := i; j < len(results); j++ {
				results[j].Err = err
			}
			break
		}
	}
	return s.spoiled(ctx, requests, results)
}

// misread changes what is asked for.
func (s *toy) misread(r dedupstore.Request) dedupstore.Request {
	switch s.broken {
	case "batch-parks-nothing":
		r.ParkExpired = false
	case "batch-forgets-reruns":
		r.Rerun = 0
	case "batch-forgets-fingerprints":
		r.Fingerprint = dedupstore.Fingerprint{}
	case "batch-mints-owners":
		r.Owner = newOwner()
	case "batch-drops-traces":
		r.Trace = ""
	case "batch-shortens-retentions":
		r.Retention = time.Millisecond
	case "batch-shortens-leases":
		r.Lease = time.Millisecond
	}
	return r
}

// missettled changes what is settled.
func (s *toy) missettled(
	c dedupstore.Claim, settlement dedupstore.Settlement,
) (dedupstore.Claim, dedupstore.Settlement) {
	const moment = 5 * time.Millisecond
	switch x := settlement.(type) {
	case dedupstore.Finish:
		switch s.broken {
		case "batch-never-publishes":
			x.Published = true
		case "batch-shortens-windows":
			if x.Published {
				x.Retention = moment
			}
		case "batch-shortens-publishing-windows":
			if !x.Published {
				x.Retention = moment
			}
		case "batch-publishes-without-a-lease":
			c.Lease = time.Millisecond
		}
		return c, x
	case dedupstore.Published:
		if s.is("batch-shortens-published-windows") {
			x.Retention = moment
		}
		settlement = x
	case dedupstore.Release:
		x.Uncounted = x.Uncounted && !s.is("batch-counts-what-is-given-back")
		if s.is("batch-forgets-what-was-released") {
			c.Retention = time.Millisecond
		}
		settlement = x
	}
	if s.is("batch-finishes-whatever-is-asked") && settlement != nil {
		settlement = dedupstore.Finish{Outcome: failed(""), Retention: long}
	}
	return c, settlement
}

// spoiled changes what is answered.
func (s *toy) spoiled(
	ctx context.Context, requests []dedupstore.Request, results []dedupstore.ClaimResult,
) []dedupstore.ClaimResult {
	failed := func(r dedupstore.ClaimResult) bool { return r.Err != nil }
	switch ended := ctx.Err() != nil; s.broken {
	case "batch-results-in-another-order":
		slices.Reverse(results)
	case "batch-answers-owners":
		granted := map[string]dedupstore.ClaimResult{}
		for i, r := range requests {
			if results[i].Answer.Status == dedupstore.AcquiredRun {
				granted[r.Owner] = results[i]
			}
		}
		for i, r := range requests {
			if of, is := granted[r.Owner]; is && results[i].Answer.Status == dedupstore.Done {
				results[i] = of
			}
		}
	case "batch-answers-first-claims-only":
		for i := range results {
			if results[i].Answer.Found != dedupstore.Absent {
				results[i].Answer.Status = dedupstore.Busy
			}
		}
	case "batch-leaves-errors-out":
		results = slices.DeleteFunc(results, failed)
	case "batch-of-at-most-512":
		results = results[:min(512, len(results))]
	case "batch-of-nothing-has-a-result":
		if len(results) == 0 {
			results = append(results, dedupstore.ClaimResult{})
		}
	case "batch-ended-context-is-no-error":
		for i := range results {
			results[i].Err = nil
		}
	case "batch-ended-context-leaves-results-out":
		if ended {
			results = nil
		}
	case "batch-ended-context-loses-claims":
		for i := range results {
			if ended {
				results[i].Err = dedupstore.ErrClaimLost
			}
		}
	case "batch-guesses-what-is-unknown":
		for i, r := range requests {
			if errors.Is(results[i].Err, context.Canceled) {
				c := dedupstore.Claim{
					Key: r.Key, Owner: r.Owner, Fence: 1, Attempt: 1, Lease: r.Lease, Retention: r.Retention,
				}
				results[i] = dedupstore.ClaimResult{Answer: dedupstore.Answer{Status: dedupstore.AcquiredRun, Claim: c}}
			}
		}
	}
	return results
}

// Extend extends one after the other, and breaks the rule, if it is one of batches.
func (s *toy) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	for i, x := range extensions {
		switch s.broken {
		case "batch-extends-all-as-the-first":
			x.Lease, x.Started = extensions[0].Lease, extensions[0].Started
		case "batch-extends-only-the-first":
			if i > 0 {
				continue
			}
		}
		errs[i] = s.extendOne(ctx, x)
		if errs[i] != nil && s.is("batch-extends-stop-at-an-error") {
			break
		}
	}
	switch s.broken {
	case "batch-extend-errors-are-joined":
		all := errors.Join(errs...)
		for i := range errs {
			errs[i] = all
		}
	case "batch-extends-hide-lost-claims":
		for i, err := range errs {
			if errors.Is(err, dedupstore.ErrClaimLost) && len(errs) > 1 {
				errs[i] = nil
			}
		}
	}
	return errs
}

// Settle settles one after the other, and breaks the rule, if it is one of batches.
func (s *toy) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	for _, i := range numbers(len(settlings), s.is("batch-settles-from-the-end")) {
		c, settlement := s.missettled(settlings[i].Claim, settlings[i].Settlement)
		if s.is("batch-repeated-settlings-are-refused") && s.hasEnded(c) {
			errs[i] = dedupstore.ErrClaimLost
			continue
		}
		errs[i] = s.settleOne(ctx, c, settlement)
		if errs[i] != nil && s.is("batch-settles-stop-at-an-error") {
			break
		}
	}
	switch ended := ctx.Err() != nil; s.broken {
	case "batch-of-at-most-512-settlings":
		return errs[:min(512, len(errs))]
	case "batch-settle-errors-are-joined":
		all := errors.Join(errs...)
		for i := range errs {
			errs[i] = all
		}
	case "batch-of-nothing-has-an-error":
		if len(errs) == 0 {
			return []error{nil}
		}
	case "batch-settles-hide-lost-claims", "batch-ended-settles-are-lost":
		for i, err := range errs {
			if ended && s.is("batch-ended-settles-are-lost") {
				errs[i] = dedupstore.ErrClaimLost
			} else if !ended && errors.Is(err, dedupstore.ErrClaimLost) {
				errs[i] = nil
			}
		}
	}
	return errs
}

// hasEnded tells whether a step of the record has ended.
func (s *toy) hasEnded(c dedupstore.Claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := s.records[s.name(c.Key)]
	return rec != nil && rec.state != dedupstore.Running && rec.state != dedupstore.Publishing
}

func numbers(n int, fromTheEnd bool) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	if fromTheEnd {
		slices.Reverse(all)
	}
	return all
}
