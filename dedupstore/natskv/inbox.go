package natskv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/recordstore"
	"github.com/oncemill/oncemill/internal/txctx"
)

// An Inbox is a Store whose runs publish into the stream that has the records. What a run has published and its outcome
// are one atomic batch: the stream gets all of it, one behind the other, the record last, or nothing.
type Inbox struct{ *Store }

var (
	_ dedupstore.Transactor = (*Inbox)(nil)
	_ dedupstore.LongLeased = (*Inbox)(nil)
)

// Inbox returns the transactional form of a store over [Config].Stream. Handlers publish by [Store.Publish], with the
// context that they get. What they return (consumer.OutputHandler, or in Watermill's Router) is in the batch, too, if
// its subjects are the stream's; the rest is stored in the record until it is published, and must fit there.
//
// It panics for a store over a bucket.
func (s *Store) Inbox() *Inbox {
	if !s.shared {
		panic("natskv: an inbox needs Config.Stream and Config.Subject")
	}
	return &Inbox{s}
}

// LeastLease implements [dedupstore.LongLeased]. A batch that got no answer is sent again after answerWithin: sent
// sooner, to a server that is slow, copies keep it busy.
func (*Inbox) LeastLease() time.Duration { return 3 * answerWithin }

// InTx implements [dedupstore.Transactor]. A run without outputs writes its record alone. Several runs are one batch:
// their outputs, and then their records, at most 1,000 messages.
func (i *Inbox) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	claims, err := dedupstore.ClaimsOf(runs)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if len(claims) > maxBatch {
		problem := fmt.Sprintf("are %d, want at most %d: each writes a record, and a batch has so many messages",
			len(claims), maxBatch)
		err = &dedupstore.InvalidError{Package: "natskv", Field: "runs", Problem: problem}
	}
	if err != nil {
		return nil, err
	}
	if finished, err := i.finished(ctx, claims); finished || err != nil {
		return nil, err
	}
	run := &run{store: i.Store, records: len(claims)}
	settlings, err := run.call(ctx, claims, work)
	if err != nil {
		return nil, err
	}
	return nil, i.commit(ctx, settlings, run.messages)
}

// TakesFirst implements [dedupstore.Transactor]. Nothing locks a record that is not there.
func (*Inbox) TakesFirst() bool { return false }

// finished looks whether the claims' runs have been committed, unless this store has just granted them.
func (i *Inbox) finished(ctx context.Context, claims []dedupstore.Claim) (bool, error) {
	finished := 0
	for _, c := range claims {
		if i.records.Owns(c) {
			continue
		}
		seen, err := i.read(ctx, c.Key)
		r := &seen.Record
		switch {
		case err != nil:
			return false, err
		case r.Owner != c.Owner || r.Fence != c.Fence:
			return false, dedupstore.ErrClaimLost
		case r.State == dedupstore.Running:
		case slices.Contains(r.Settled, c.Owner):
			finished++
		default:
			return false, dedupstore.ErrClaimLost
		}
	}
	if finished > 0 && finished < len(claims) {
		return false, dedupstore.ErrClaimLost
	}
	return finished > 0, nil
}

// call runs work with a context that carries the run. What is published after it is refused.
func (r *run) call(
	ctx context.Context, claims []dedupstore.Claim, work dedupstore.TxWork,
) ([]dedupstore.Settling, error) {
	defer r.end()
	settlements, err := work(txctx.With[txctx.Carrier[dedupstore.Produced]](txctx.With(ctx, r), r), claims)
	if err == nil {
		err = dedupstore.ValidateFinishes(settlements, len(claims))
	}
	if err != nil {
		return nil, err
	}
	settlings := make([]dedupstore.Settling, len(claims))
	for i, c := range claims {
		settlings[i] = dedupstore.Settling{Claim: c, Settlement: settlements[i]}
	}
	return settlings, nil
}

// commit settles with the outputs, until it is known whether that has happened, or the lease is over. It may be tried
// again and again: the server refuses a batch that comes late, or if somebody has changed one of its records.
func (i *Inbox) commit(ctx context.Context, settlings []dedupstore.Settling, outputs []*nats.Msg) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		max(settlings[0].Claim.Lease, i.batches.within))
	defer cancel()
	unknown := false
	write := func(ctx context.Context, keys []dedupstore.Key, next []*dedupstore.Stored, seen []int64,
		now recordstore.Time) ([]int64, error) {
		records, err := i.messages(keys, next, now)
		if err != nil {
			return nil, err
		}
		last, err := i.writeBatch(ctx, outputs, records, seen)
		switch {
		case conflict(err):
			return nil, recordstore.ErrConflict
		case err != nil:
			unknown = unknown || !proves(err)
			return nil, i.failed(ctx, err)
		}
		return numbered(last, len(records)), nil
	}
	pauses := pace.Pace{Shortest: 5 * time.Millisecond, Longest: 500 * time.Millisecond}
	var reason error // why it is tried again
	for {
		err := i.records.Finish(ctx, settlings, write)
		if reason != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			err = reason
		}
		reason = err
		switch {
		case err == nil, errors.Is(err, dedupstore.ErrClaimLost):
			return err
		case !unknown && lasts(err):
			return err
		case pace.Sleep(ctx, pace.Jitter(pauses.Next())):
		case unknown:
			return &dedupstore.UndecidedError{Err: err}
		default:
			return err
		}
	}
}

// messages are what records are written as.
func (s *Store) messages(keys []dedupstore.Key, next []*dedupstore.Stored, now recordstore.Time) ([]*nats.Msg, error) {
	all := make([]*nats.Msg, len(next))
	for i, rec := range next {
		data, header, err := s.message(rec, now)
		if err != nil {
			return nil, err
		}
		all[i] = &nats.Msg{Subject: s.subject(keys[i]), Header: header, Data: data}
	}
	return all, nil
}

// numbered returns the numbers of so many records of a batch that ends with the last.
func numbered(last int64, records int) []int64 {
	numbers := make([]int64, records)
	for n := range numbers {
		numbers[n] = last - int64(records-1-n)
	}
	return numbers
}

// writeBatch writes records behind outputs, if their last revisions are the given ones: whoever sees one of them sees
// all outputs. It returns the number of the last.
func (s *Store) writeBatch(
	ctx context.Context, outputs []*nats.Msg, records []*nats.Msg, seen []int64,
) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.batches.within)
	defer cancel()
	if r := records[0]; len(outputs) == 0 && len(records) == 1 && s.batches.fault == nil {
		return s.publish(ctx, r.Subject, r.Data, seen[0], r.Header)
	}
	for i, r := range records {
		s.condition(r.Header, seen[i])
	}
	return s.batches.publish(ctx, append(slices.Clip(outputs), records...))
}

// lasts reports whether an error of a settlement will be the same again: the stream refuses it, or it cannot be sent. A
// missing right is none unless it refused this very batch: what the connection heard of one may be old, and not the
// reason why an answer is late.
func lasts(err error) bool {
	var api *jetstream.APIError
	var setup *dedupstore.SetupError
	var record *dedupstore.RecordError
	var unsent *unsentError
	return errors.Is(err, dedupstore.ErrFull) || errors.As(err, &record) ||
		errors.As(err, &setup) && (!errors.Is(err, nats.ErrPermissionViolation) || errors.As(err, &unsent)) ||
		errors.As(err, &api) && !passes(api)
}
