// Package recordstore is for stores that read a record, decide, and write the record if nobody else did meanwhile.
// [dedupstore.Stored] decides. This package has the steps around it: batches, what is known of the time, and the
// encoding.
package recordstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Time is what a store knows of the time by its clock: it is not before Early and not after Late. What begins lasts
// from Late, and ends when Early says so. So a lease may live longer by the difference, and never shorter.
type Time struct{ Early, Late time.Time }

func (t Time) slack() time.Duration { return t.Late.Sub(t.Early) }

// A Work is what a batch does to the record of one key.
type Work struct {
	Key   dedupstore.Key
	steps []step
}

// A step is one operation. It keeps its result when it is applied.
type step struct {
	apply func(s dedupstore.Stored, t Time) *dedupstore.Stored
	fail  func(error)
}

// Apply makes the operations in their order, and returns the record to write; nil: it stays as it is. It may be called
// again, with the record as somebody else left it: every operation is idempotent for its owner. The results are those
// of the last call.
func (w *Work) Apply(s dedupstore.Stored, t Time) (next *dedupstore.Stored) {
	for _, step := range w.steps {
		if changed := step.apply(s, t); changed != nil {
			s, next = *changed, changed
		}
	}
	return next
}

// A Do does the work of one key: it reads the record, calls Apply, and writes what that returns, on the condition that
// the record is still the one that was read; else it begins again. After an error nobody knows whether it was written.
type Do func(context.Context, *Work) error

// Claim is Store.Claim over do. It does the works of different keys side by side, unless together, if it is not nil,
// has done all of several.
func Claim(
	ctx context.Context, requests []dedupstore.Request, together func(context.Context, []*Work) bool, do Do,
) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	var b batch
	for i, r := range requests {
		result := &results[i]
		if result.Err = r.Validate(); result.Err != nil {
			continue
		}
		b.add(r.Key, step{
			apply: func(s dedupstore.Stored, t Time) (next *dedupstore.Stored) {
				wide := r
				wide.Lease += t.slack()
				next, result.Answer = s.Claim(wide, t.Early)
				result.Answer.Outcome = result.Answer.Outcome.Clone() // a batch may get it more than once
				if result.Answer.Claim.Lease != 0 {
					result.Answer.Claim.Lease = r.Lease
				}
				return next
			},
			fail: func(err error) { *result = dedupstore.ClaimResult{Err: err} },
		})
	}
	if together == nil || len(b.works) < 2 || !together(ctx, b.works) {
		b.run(ctx, do)
	}
	return results
}

// Extend is Store.Extend over do.
func Extend(ctx context.Context, extensions []dedupstore.Extension, do Do) []error {
	errs := make([]error, len(extensions))
	var b batch
	for i, x := range extensions {
		if errs[i] = x.Validate(); errs[i] != nil {
			continue
		}
		b.add(x.Claim.Key, step{
			apply: func(s dedupstore.Stored, t Time) (next *dedupstore.Stored) {
				wide := x
				wide.Lease += t.slack()
				next, errs[i] = s.Extend(wide, t.Early)
				return next
			},
			fail: func(err error) { errs[i] = err },
		})
	}
	b.run(ctx, do)
	return errs
}

// Settle is Store.Settle over do.
func Settle(ctx context.Context, settlings []dedupstore.Settling, do Do) []error {
	errs := make([]error, len(settlings))
	var b batch
	for i, x := range settlings {
		if errs[i] = x.Claim.Validate(); errs[i] == nil {
			errs[i] = dedupstore.ValidateSettlement(x.Settlement)
		}
		if errs[i] != nil {
			continue
		}
		b.add(x.Claim.Key, step{
			apply: func(s dedupstore.Stored, t Time) (next *dedupstore.Stored) {
				next, errs[i] = settled(s, x, t)
				return next
			},
			fail: func(err error) { errs[i] = err },
		})
	}
	b.run(ctx, do)
	return errs
}

// settled is a record after a settlement.
func settled(s dedupstore.Stored, x dedupstore.Settling, t Time) (next *dedupstore.Stored, err error) {
	wide := x.Claim
	wide.Lease += t.slack()
	wide.Retention += t.slack()
	return s.Settle(wide, widen(x.Settlement, t.slack()), t.Early)
}

// widen lets what a settlement begins last longer. A Finish that publishes lasts from its lease, which is wide already.
func widen(settlement dedupstore.Settlement, slack time.Duration) dedupstore.Settlement {
	switch s := settlement.(type) {
	case dedupstore.Finish:
		s.Retention += slack
		return s
	case dedupstore.Release:
		if s.Delay > 0 {
			s.Delay += slack
		}
		return s
	case dedupstore.Published:
		s.Retention += slack
		return s
	}
	return settlement
}

// Note is Inspector.NoteDuplicates over do.
func Note(ctx context.Context, duplicates []dedupstore.Duplicates, do Do) error {
	errs := make([]error, len(duplicates))
	var b batch
	for i, d := range duplicates {
		if errs[i] = d.Key.Validate(); errs[i] != nil {
			continue
		}
		b.add(d.Key, step{
			apply: func(s dedupstore.Stored, t Time) *dedupstore.Stored { return s.Note(d, t.Early) },
			fail:  func(err error) { errs[i] = err },
		})
	}
	b.run(ctx, do)
	return errors.Join(errs...)
}

// A batch has the works of its keys, in the order in which they came.
type batch struct {
	works []*Work
	byKey map[dedupstore.Key]*Work // from the second key on
}

func (b *batch) add(key dedupstore.Key, s step) {
	w := b.byKey[key]
	if len(b.works) == 1 && b.works[0].Key == key {
		w = b.works[0]
	}
	if w == nil {
		w = &Work{Key: key}
		b.works = append(b.works, w)
		if len(b.works) > 1 {
			if b.byKey == nil {
				b.byKey = map[dedupstore.Key]*Work{b.works[0].Key: b.works[0]}
			}
			b.byKey[key] = w
		}
	}
	w.steps = append(w.steps, s)
}

// run does the works side by side, and returns when all are done.
func (b *batch) run(ctx context.Context, do Do) {
	one := func(w *Work) {
		err := ctx.Err()
		if err == nil {
			err = do(ctx, w)
		}
		if err != nil {
			for _, step := range w.steps {
				step.fail(err)
			}
		}
	}
	if len(b.works) == 1 {
		one(b.works[0])
		return
	}
	var group sync.WaitGroup
	for _, w := range b.works {
		group.Go(func() { one(w) })
	}
	group.Wait()
}
