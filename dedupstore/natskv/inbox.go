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

// InTx implements [dedupstore.Transactor]. A run without outputs writes its record alone.
func (i *Inbox) InTx(ctx context.Context, c dedupstore.Claim,
	work func(context.Context) (dedupstore.Settlement, error)) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !i.records.Owns(c) {
		if finished, err := i.finished(ctx, c); finished || err != nil {
			return err
		}
	}
	run := &run{store: i.Store}
	finish, err := run.call(ctx, work)
	if err != nil {
		return err
	}
	return i.commit(ctx, c, finish, run.messages)
}

// finished looks whether the claim's run has been committed.
func (i *Inbox) finished(ctx context.Context, c dedupstore.Claim) (bool, error) {
	seen, err := i.read(ctx, c.Key)
	r := &seen.Record
	switch {
	case err != nil:
		return false, err
	case r.Owner != c.Owner || r.Fence != c.Fence:
		return false, dedupstore.ErrClaimLost
	case r.State == dedupstore.Running:
		return false, nil
	case slices.Contains(r.Settled, c.Owner):
		return true, nil
	}
	return false, dedupstore.ErrClaimLost
}

// call runs work with a context that carries the run. What is published after it is refused.
func (r *run) call(
	ctx context.Context, work func(context.Context) (dedupstore.Settlement, error),
) (dedupstore.Settlement, error) {
	defer r.end()
	settlement, err := work(txctx.With[txctx.Carrier[dedupstore.Produced]](txctx.With(ctx, r), r))
	if err != nil {
		return nil, err
	}
	if _, ok := settlement.(dedupstore.Finish); !ok {
		return nil, &dedupstore.InvalidError{
			Package: "natskv", Field: "Settlement", Problem: fmt.Sprintf("is %T, want Finish", settlement),
		}
	}
	return settlement, dedupstore.ValidateSettlement(settlement)
}

// commit settles with the outputs, until it is known whether that has happened, or the lease is over. It may be tried
// again and again: a batch whose record is not the one that was seen is refused, and so is one that comes late.
func (i *Inbox) commit(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement, outputs []*nats.Msg) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(c.Lease, i.batches.within))
	defer cancel()
	unknown := false
	write := func(ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, now recordstore.Time) (
		int64, *recordstore.Revision, error) {
		data, header, err := i.message(next, now)
		if err != nil {
			return 0, nil, err
		}
		record := &nats.Msg{Subject: i.subject(key), Header: header, Data: data}
		number, err := i.writeBatch(ctx, outputs, record, seen)
		switch {
		case conflict(err):
			return 0, nil, recordstore.ErrConflict
		case err != nil:
			unknown = unknown || !proves(err)
			return 0, nil, i.failed(ctx, err)
		}
		return number, nil, nil
	}
	do := func(ctx context.Context, w *recordstore.Work) error { return i.records.DoBy(ctx, w, write) }
	pauses := pace.Pace{Shortest: 5 * time.Millisecond, Longest: 500 * time.Millisecond}
	for {
		err := recordstore.Settle(ctx, []dedupstore.Settling{{Claim: c, Settlement: s}}, do)[0]
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

// writeBatch writes a record behind outputs, if its last revision is the given one: whoever sees it sees them.
func (s *Store) writeBatch(ctx context.Context, outputs []*nats.Msg, record *nats.Msg, seen int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.batches.within)
	defer cancel()
	if len(outputs) == 0 && s.batches.fault == nil {
		return s.publish(ctx, record.Subject, record.Data, seen, record.Header)
	}
	s.condition(record.Header, seen)
	return s.batches.publish(ctx, append(slices.Clip(outputs), record))
}

// lasts reports whether an error of a settlement will be the same again: nothing was sent, or the stream refuses it.
func lasts(err error) bool {
	var api *jetstream.APIError
	var setup *dedupstore.SetupError
	var record *dedupstore.RecordError
	return errors.Is(err, dedupstore.ErrFull) || errors.As(err, &setup) || errors.As(err, &record) ||
		errors.As(err, &api) && !passes(api)
}
