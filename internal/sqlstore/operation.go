package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// An Operation is decided by the record of its key, and may change it.
type Operation struct {
	ID, Key string
	Lease   time.Duration // of the claim; 0: it does not matter

	// Apply may be called again, after a conflict, or because the record was locked.
	Apply func(rec dedupstore.Stored, now time.Time) (*dedupstore.Stored, error)

	Err *error // where the result goes
}

// NewOperation is one on the record of a key, without what it does.
func NewOperation(key dedupstore.Key, err *error) Operation {
	name := key.String()
	return Operation{ID: IDOf(name), Key: name, Err: err}
}

// ErrContended is the result of an operation that has to change what somebody else has locked.
var ErrContended = errors.New("another transaction has the record locked")

// Decide makes operations one after the other, by the rows that were found, and returns the rows to write. It changes
// only what is locked here: others get ErrContended, and so do those of their keys that come after them. An ID without
// a row counts as absent.
func Decide(ops []Operation, found map[string]*Row, locked map[string]bool, now time.Time) (changed []*Row) {
	waits := map[string]bool{}
	for _, op := range ops {
		rec := found[op.ID]
		switch {
		case waits[op.ID]:
			*op.Err = ErrContended
			continue
		case rec == nil:
			rec = &Row{Key: op.Key}
		case rec.Err == nil && rec.Key != op.Key:
			rec.Err = &dedupstore.RecordError{Key: op.Key, Problem: "has the hash of another key: " + rec.Key}
		}
		if *op.Err = rec.Err; rec.Err != nil {
			continue
		}
		var next *dedupstore.Stored
		next, *op.Err = op.Apply(rec.Stored, now)
		switch {
		case next == nil:
			continue
		case !locked[op.ID]:
			waits[op.ID] = true
			*op.Err = ErrContended
			continue
		}
		rec.Stored = *next
		if !rec.changed {
			rec.changed = true
			changed = append(changed, rec)
		}
	}
	return changed
}

// Changing makes operations that leave their records, which nobody has locked here, as they are. It returns the others.
func Changing(ops []Operation, found map[string]*Row, now time.Time) []Operation {
	Decide(ops, found, nil, now)
	return slices.DeleteFunc(slices.Clone(ops), func(op Operation) bool {
		return *op.Err != ErrContended //nolint:errorlint // Decide's own
	})
}

// Together makes operations in batches of at most so many. If a batch is refused, each of it goes alone where that may
// help: what one is refused for says nothing of the others.
func Together[O any](all []O, most int, do func([]O) error, alone func(error) bool, fail func(O, error)) {
	for batch := range slices.Chunk(all, most) {
		switch err := do(batch); {
		case err == nil:
		case len(batch) > 1 && alone(err):
			Together(batch, 1, do, alone, fail)
		default:
			for _, o := range batch {
				fail(o, err)
			}
		}
	}
}

// RunCleaning cleans again and again, with rests between, until ctx ends. It logs errors and goes on.
func RunCleaning(ctx context.Context, log *slog.Logger, table string, rest time.Duration,
	clean func(context.Context) error) error {
	for {
		if err := clean(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "dedupstore: expired records could not be deleted", "table", table, "error", err)
		}
		if !pace.Sleep(ctx, pace.Jitter(rest)) {
			return nil
		}
	}
}
