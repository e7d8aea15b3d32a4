package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

// An update is an extension or a settlement on its way.
type update struct {
	sqlstore.Operation
	claim     dedupstore.Claim
	extension *dedupstore.Extension
	plain     *dedupstore.Finish // a success that produced nothing, as nearly all are
	done      bool               // there is a result
}

func newUpdate(c dedupstore.Claim, err *error) *update {
	key := c.Key.String()
	return &update{claim: c, Operation: sqlstore.Operation{ID: sqlstore.IDOf(key), Key: key, Err: err}}
}

// Extend implements [dedupstore.Store].
func (f *form) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	errs := make([]error, len(extensions))
	var all []*update
	for i := range extensions {
		x := &extensions[i]
		if errs[i] = x.Validate(); errs[i] != nil {
			continue
		}
		s := newUpdate(x.Claim, &errs[i])
		s.extension = x
		s.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			if rec.State == dedupstore.Finished && sqlstore.OwnedBy(rec, x.Claim) && f.store.joined.has(x.Claim.Owner) {
				return nil, nil // the handler has committed, and will return
			}
			return rec.Extend(*x, now)
		}
		all = append(all, s)
	}
	f.settleAll(ctx, "extend", all, f.extend, f.lookBack)
	return errs
}

// Settle implements [dedupstore.Store].
func (f *form) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	errs := make([]error, len(settlings))
	var all []*update
	for i, x := range settlings {
		f.store.granted.take(x.Claim.Owner)
		errs[i] = cmp.Or(x.Claim.Validate(), dedupstore.ValidateSettlement(x.Settlement))
		if errs[i] != nil {
			continue
		}
		s := newUpdate(x.Claim, &errs[i])
		if finish, is := x.Settlement.(dedupstore.Finish); is && isPlain(finish) {
			s.plain = &finish
		}
		s.Apply = func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error) {
			return sqlstore.Settle(rec, x.Claim, x.Settlement, now)
		}
		all = append(all, s)
	}
	f.settleAll(ctx, "settle", all, f.finish, f.lockAndSettle)
	for i, err := range errs {
		if err == nil || errors.Is(err, dedupstore.ErrClaimLost) || errors.Is(err, sqlstore.ErrJoinedOutputs) {
			f.store.joined.take(settlings[i].Claim.Owner)
		}
	}
	return errs
}

// isPlain reports whether an outcome is what nearly all are: a success that produced nothing.
func isPlain(f dedupstore.Finish) bool {
	o := &f.Outcome
	return o.Kind == dedupstore.Succeeded && o.Reason == "" && !o.Truncated && len(o.Produced) == 0
}

// joinWait is how long an extension waits beside a transaction of a handler that has called Join. A takeover, if
// such a transaction was rolled back before, takes less.
const joinWait = 50 * time.Millisecond

// contendedFor is how long operations wait for the records that others have locked. Other operations, which came with
// them, wait as long for their answers.
const contendedFor = 200 * time.Millisecond

// settleAll makes operations, first by a statement that does for nearly all, and what that leaves out by rest. It asks
// again for records that somebody has locked, for contendedFor. Only a transaction that settles this very claim locks a
// record for long. If it is a handler's that has called Join, nobody takes the key over meanwhile, and extensions need
// not wait.
func (f *form) settleAll(ctx context.Context, what string, all []*update,
	quick func(context.Context, []*update) error, rest func(context.Context, []*update, text) error,
) {
	fail := func(s *update, err error) { *s.Err, s.done = f.store.failed(what, err), true }
	pauses := pace.Pace{Shortest: time.Millisecond, Longest: 50 * time.Millisecond}
	for start := time.Now(); ; {
		var first []*update // of each key, if the statement may do for it
		known := map[string]bool{}
		for _, s := range all {
			if !known[s.ID] && (s.plain != nil || s.extension != nil) {
				first = append(first, s)
			}
			known[s.ID] = true
		}
		together(ctx, first, func(some []*update, _ text) error { return quick(ctx, some) }, fail)
		all = slices.DeleteFunc(all, func(s *update) bool { return s.done })
		together(ctx, all, func(some []*update, text text) error { return rest(ctx, some, text) }, fail)
		all = slices.DeleteFunc(all, func(s *update) bool {
			if s.done || *s.Err != sqlstore.ErrContended { //nolint:errorlint // Decide's own
				return true
			}
			*s.Err = nil
			return s.extension != nil && time.Since(start) > joinWait && f.store.joined.has(s.claim.Owner)
		})
		if len(all) == 0 || time.Since(start) > contendedFor || !pace.Sleep(ctx, pauses.Next()) {
			break
		}
	}
	for _, s := range all {
		fail(s, cmp.Or(ctx.Err(), sqlstore.ErrContended))
	}
}

// extend makes the extensions of claims that hold, and that nobody has locked. Its commit waits for the disk, and so
// also for the claim before it, whose commit may not have waited: what a heartbeat has marked as started is not
// forgotten.
func (f *form) extend(ctx context.Context, extensions []*update) error {
	n := len(extensions)
	leases, lives, started := make([]int64, n), make([]int64, n), make([]bool, n)
	for i, s := range extensions {
		leases[i], started[i] = sqlstore.Micros(s.extension.Lease), s.extension.Started
		lives[i] = leases[i] + sqlstore.Micros(s.claim.Retention)
	}
	return f.quick(ctx, f.store.sql.extend, extensions, leases, lives, started)
}

// finish makes plain settlements of claims that hold, and that nobody has locked.
func (f *form) finish(ctx context.Context, settlings []*update) error {
	n := len(settlings)
	kept, results, took := make([]int64, n), make([][]byte, n), make([]*int64, n)
	for i, s := range settlings {
		kept[i], took[i] = sqlstore.Micros(s.plain.Retention), millis(s.plain.Took)
		results[i] = sqlstore.Result(s.plain.Outcome)
	}
	return f.quick(ctx, f.store.sql.settle, settlings, kept, results, took)
}

// millis is how long a run took; nil if that is not known.
func millis(took time.Duration) *int64 {
	if took <= 0 {
		return nil
	}
	return new(took.Milliseconds())
}

// quick makes operations of one kind, in one round trip. The statement returns the IDs of those that it has made.
func (f *form) quick(ctx context.Context, query string, settlings []*update, args ...any) error {
	n := len(settlings)
	ids, owners, fences := make([][]byte, n), make([]string, n), make([]int64, n)
	for i, s := range settlings {
		ids[i], owners[i], fences[i] = []byte(s.ID), s.claim.Owner, int64(s.claim.Fence)
	}
	made := map[string]bool{}
	err := f.store.again(ctx, func() error {
		clear(made)
		var b pgx.Batch
		b.Queue(useIndexes + durability(false))
		b.Queue(query, append([]any{ids, owners, fences}, args...)...).Query(idsInto(made))
		return f.store.pool.SendBatch(ctx, &b).Close()
	})
	for _, s := range settlings {
		s.done = err == nil && made[s.ID]
	}
	return err
}

// lookBack answers the extensions that are refused. The others contend with somebody.
func (f *form) lookBack(ctx context.Context, extensions []*update, _ text) error {
	ops := operationsOf(extensions)
	return f.store.inTx(ctx, func(tx transaction) error {
		found := map[string]*sqlstore.Row{}
		var now time.Time
		var b pgx.Batch
		b.Queue(useIndexes)
		load(&b, f.store.sql.load, idsOf(ops), found, &now)
		err := tx.send(ctx, &b)
		if err == nil {
			sqlstore.Decide(ops, found, nil, now)
		}
		return err
	})
}

// lockAndSettle settles whatever there is, unless somebody has it locked.
func (f *form) lockAndSettle(ctx context.Context, settlings []*update, text text) error {
	return f.store.change(ctx, operationsOf(settlings), false, text)
}

func operationsOf(settlings []*update) []sqlstore.Operation {
	ops := make([]sqlstore.Operation, len(settlings))
	for i, s := range settlings {
		ops[i] = s.Operation
	}
	return ops
}
