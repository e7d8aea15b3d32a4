package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Claim implements [dedupstore.Store]: in pipelines of at most 256 claims, and further ones for those of keys that are
// known and not done. Before the first claim it calls Check, unless the config says otherwise: while the server is
// unfit or down, claims fail and the next one looks again. With Config.Replicas a run that too few replicas know is not
// granted: [dedupstore.ErrNotDurable]. A claim that has been sent is waited for then until the replicas have answered,
// at most half a second longer than they have and the context lasts: it may have to be given back.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	ready := s.ready.pass(ctx, s.check)
	several := several(requests)
	ops := make([]*operation, 0, len(requests))
	for i, r := range requests {
		switch err := r.Validate(); {
		case err != nil:
			results[i].Err = err
		case ready != nil:
			results[i].Err = ready
		case several[r.Key]: // in order, so none of them in a second pipeline
			ops = append(ops, s.claimOperation(i, r))
		default:
			ops = append(ops, s.firstOperation(i, r))
		}
	}
	for len(ops) > 0 {
		ops = s.ask(ctx, requests, ops, results)
	}
	return results
}

// several returns the keys of more than one request.
func several(requests []dedupstore.Request) map[dedupstore.Key]bool {
	if len(requests) < 2 {
		return nil
	}
	several := make(map[dedupstore.Key]bool, len(requests))
	for _, r := range requests {
		_, known := several[r.Key]
		several[r.Key] = known
	}
	return several
}

// ask sends claims and reads their answers. It returns those that have to be asked again, by script.
func (s *Store) ask(
	ctx context.Context, requests []dedupstore.Request, ops []*operation, results []dedupstore.ClaimResult,
) (again []*operation) {
	if !s.send(ctx, ops, true) {
		for _, op := range ops {
			results[op.index].Err = ctx.Err()
		}
		return nil
	}
	var back []*operation
	for _, op := range ops {
		r, result := requests[op.index], &results[op.index]
		answer, known, err := s.answer(r, op)
		if !known {
			again = append(again, s.claimOperation(op.index, r))
			continue
		}
		*result = dedupstore.ClaimResult{Answer: answer, Err: err}
		if lack := s.lack(op); lack != nil && answer.Status == dedupstore.AcquiredRun {
			*result = dedupstore.ClaimResult{Err: lack}
			back = append(back, s.releaseOperation(0, answer.Claim, dedupstore.Release{Reason: lack.Error()}, '2'))
		}
	}
	s.giveBack(ctx, back)
	return again
}

// lack is why a run is not granted that a claim got: too few replicas have it. Only runs need that: what has to be
// published has been decided already.
func (s *Store) lack(op *operation) error {
	got := op.acknowledged
	if !s.barrier.on() || got.replicas >= s.config.Replicas {
		return nil
	}
	why := cmp.Or(got.err, fmt.Errorf("%d replicas have it, want %d", got.replicas, s.config.Replicas))
	return fmt.Errorf("redisstore: WAIT: %w: %w", dedupstore.ErrNotDurable, why)
}

// releaseTimeout bounds how long the store tries to give back a claim that was not replicated. If that fails, its lease
// has to end.
const releaseTimeout = time.Second

// giveBack gives back runs that too few replicas have. Their owners have settled then, and are never granted the key
// again: a late copy of the release must not meet a run of theirs. What cannot be given back ends with its lease, and
// counts as an attempt.
func (s *Store) giveBack(ctx context.Context, ops []*operation) {
	if len(ops) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	s.send(ctx, ops, false)
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return s.change(ctx, len(extensions), func(i int) (*operation, error) {
		x := extensions[i]
		if err := x.Validate(); err != nil {
			return nil, err
		}
		owner := append(ownerOf(x.Claim), flag(x.Started))
		return s.operation(i, s.scripts.extend, x.Claim.Key, owner, milliseconds(x.Lease),
			milliseconds(x.Claim.Retention)), nil
	})
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return s.change(ctx, len(settlings), func(i int) (*operation, error) {
		return s.settleOperation(i, settlings[i])
	})
}

// change runs operations that are answered yes or no, each of which one makes.
func (s *Store) change(ctx context.Context, n int, one func(i int) (*operation, error)) []error {
	errs := make([]error, n)
	ops := make([]*operation, 0, n)
	for i := range n {
		op, err := one(i)
		if errs[i] = err; err == nil {
			ops = append(ops, op)
		}
	}
	known := s.send(ctx, ops, false)
	for _, op := range ops {
		if errs[op.index] = ctx.Err(); known {
			errs[op.index] = s.done(op)
		}
	}
	return errs
}

// done reads the reply of a script that answers yes or no.
func (s *Store) done(op *operation) error {
	if err := op.failure(); err != nil {
		if op.err != nil && forbidden(op.err) {
			s.barred.Store(true) // plain claims may still be allowed: each would be a run that cannot be settled
		}
		return err
	}
	switch op.reply {
	case replyOK:
		return nil
	case replyLost:
		return dedupstore.ErrClaimLost
	}
	return fmt.Errorf("redisstore: %s: %w", op.script.name, errReply)
}
