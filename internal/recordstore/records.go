package recordstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

// A Revision is a record as it was written once. Its number is another one after each write, and 0 if there is none.
type Revision struct {
	Number int64
	Record dedupstore.Stored
}

// NewNumber returns a random number, for a server that does not count.
func NewNumber() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// ErrConflict says that a record is not the one that was seen.
var ErrConflict = errors.New("somebody else wrote the record meanwhile")

// A Write writes a record, nil to remove it, if the last revision has the number that was seen; 0: if there is none. It
// returns the number of the new one. With [ErrConflict] it returns the one that is there, if the server says it.
type Write func(
	ctx context.Context, key dedupstore.Key, next *dedupstore.Stored, seen int64, now Time,
) (number int64, there *Revision, err error)

// Records are those of a store. It does works with them, and what an operator wants.
type Records struct {
	Package string // for errors

	// Now is the time by the clock that decides.
	Now func(context.Context) (Time, error)

	// Read returns the last revision, with all writes that were confirmed before.
	Read func(context.Context, dedupstore.Key) (Revision, error)

	Write Write

	// Grant is Write for what may end the lease of others: claims and changes.
	Grant Write

	recent recent
}

// Claim does the work of claims. Sure says that one may be decided before the record has been read: then a key that was
// not claimed lately is tried as a new one first.
func (r *Records) Claim(ctx context.Context, w *Work, sure func(context.Context) bool) error {
	_, claimed := r.recent.get(w.Key)
	return r.change(ctx, w, Revision{}, !claimed && sure(ctx), r.Grant)
}

// ClaimNew does the works of claims by one write, if no key was claimed lately, and none has a record. After an error
// the write may have happened or not. Then do each work by Claim, which gives an owner the same answer again.
func (r *Records) ClaimNew(ctx context.Context, works []*Work, write WriteAll) error {
	now, err := r.Now(ctx)
	if err != nil {
		return err
	}
	keys, next := make([]dedupstore.Key, len(works)), make([]*dedupstore.Stored, len(works))
	for i, w := range works {
		keys[i] = w.Key
		if _, claimed := r.recent.get(w.Key); claimed {
			return ErrConflict
		}
		if next[i] = w.Apply(dedupstore.Stored{}, now); next[i] == nil {
			return ErrConflict
		}
	}
	numbers, err := write(ctx, keys, next, make([]int64, len(works)), now)
	if err != nil {
		return err
	}
	for i, key := range keys {
		r.recent.put(key, Revision{numbers[i], *next[i]})
	}
	return nil
}

// Do does a work with the record that was written last, if it is known. It is a [Do].
func (r *Records) Do(ctx context.Context, w *Work) error {
	seen, known := r.recent.get(w.Key)
	return r.change(ctx, w, seen, known, r.Write)
}

// A WriteAll writes records if their last revisions are the seen ones: all of them, and returns their new numbers, or
// none. See Write.
type WriteAll func(
	ctx context.Context, keys []dedupstore.Key, next []*dedupstore.Stored, seen []int64, now Time,
) (numbers []int64, err error)

// Finish settles claims by one write, all of them or none. Nil also says that all were settled before.
func (r *Records) Finish(ctx context.Context, settlings []dedupstore.Settling, write WriteAll) error {
	pause := firstPause
	seen, guessed := r.recentOf(settlings)
	keys := make([]dedupstore.Key, len(settlings))
	for i, s := range settlings {
		keys[i] = s.Claim.Key
	}
	for range maxTries {
		var err error
		if seen == nil {
			if seen, err = r.readAll(ctx, settlings); err != nil {
				return err
			}
			guessed = false
		}
		now, err := r.Now(ctx)
		if err != nil {
			return err
		}
		next, numbers, err := settleAll(seen, settlings, now)
		switch {
		case guessed && (err != nil || next == nil):
			seen = nil
			continue
		case err != nil || next == nil:
			return err
		}
		numbers, err = write(ctx, keys, next, numbers, now)
		for i, s := range settlings {
			if err == nil {
				r.recent.put(s.Claim.Key, Revision{numbers[i], *next[i]})
			} else {
				r.recent.forget(s.Claim.Key)
			}
		}
		if !errors.Is(err, ErrConflict) {
			return err
		}
		if !guessed {
			if !pace.Sleep(ctx, pause) {
				return context.Cause(ctx)
			}
			pause = min(2*pause, lastPause)
		}
		seen = nil
	}
	return r.busy(settlings[0].Claim.Key)
}

// settleAll returns the records to write, and the numbers of those before. There are none if all are settled.
func settleAll(seen []Revision, settlings []dedupstore.Settling, now Time) (
	next []*dedupstore.Stored, numbers []int64, err error) {
	for i, s := range settlings {
		rec, err := settled(seen[i].Record, s, now)
		if err != nil {
			return nil, nil, err
		}
		if rec != nil {
			next, numbers = append(next, rec), append(numbers, seen[i].Number)
		}
	}
	if next != nil && len(next) < len(settlings) {
		err = dedupstore.ErrClaimLost
	}
	return next, numbers, err
}

// recentOf returns the records that were written last, if all are known.
func (r *Records) recentOf(settlings []dedupstore.Settling) (seen []Revision, known bool) {
	for _, s := range settlings {
		one, known := r.recent.get(s.Claim.Key)
		if !known {
			return nil, false
		}
		seen = append(seen, one)
	}
	return seen, true
}

func (r *Records) readAll(ctx context.Context, settlings []dedupstore.Settling) ([]Revision, error) {
	seen, errs := make([]Revision, len(settlings)), make([]error, len(settlings))
	if len(settlings) == 1 {
		seen[0], errs[0] = r.Read(ctx, settlings[0].Claim.Key)
		return seen, errs[0]
	}
	var group sync.WaitGroup
	for i, s := range settlings {
		group.Go(func() { seen[i], errs[i] = r.Read(ctx, s.Claim.Key) })
	}
	group.Wait()
	return seen, errors.Join(errs...)
}

// Owns reports that the record was the claim's, and running, when this store wrote it last.
func (r *Records) Owns(c dedupstore.Claim) bool {
	seen, known := r.recent.get(c.Key)
	return known && seen.Record.State == dedupstore.Running && seen.Record.Owner == c.Owner &&
		seen.Record.Fence == c.Fence
}

// Pauses between tries to change a record that others change too. A try fails because somebody else's succeeded.
const (
	maxTries   = 32
	firstPause = time.Millisecond
	lastPause  = 64 * time.Millisecond
)

// change does a work. Guessed says that what was seen may be out of date. A write proves that it was not; what writes
// nothing is decided by what the server has.
func (r *Records) change(ctx context.Context, w *Work, seen Revision, guessed bool, write Write) (err error) {
	unread, pause := !guessed, firstPause
	for range maxTries {
		if unread {
			if seen, err = r.Read(ctx, w.Key); err != nil {
				return err
			}
			unread, guessed = false, false
		}
		now, err := r.Now(ctx)
		if err != nil {
			return err
		}
		next := w.Apply(seen.Record, now)
		switch {
		case next == nil && !guessed:
			return nil
		case next == nil:
			unread = true
			continue
		}
		number, there, err := write(ctx, w.Key, next, seen.Number, now)
		if err == nil {
			r.recent.put(w.Key, Revision{number, *next})
			return nil
		}
		r.recent.forget(w.Key)
		switch {
		case !errors.Is(err, ErrConflict):
			return err
		case guessed && there != nil:
			seen, guessed = *there, false
		case guessed:
			unread = true
		case !pace.Sleep(ctx, pause):
			return context.Cause(ctx)
		default:
			pause, unread = min(2*pause, lastPause), true
		}
	}
	return r.busy(w.Key)
}

func (r *Records) busy(key dedupstore.Key) error {
	return fmt.Errorf("%s: key %q: others changed it %d times meanwhile", r.Package, key, maxTries)
}

// Change implements Inspector.Change.
func (r *Records) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	for range maxTries {
		found, err := r.Read(ctx, seen.Key)
		if err != nil {
			return err
		}
		now, err := r.Now(ctx)
		if err != nil {
			return err
		}
		next, err := found.Record.Change(seen, c, now.Early)
		if err != nil {
			return err
		}
		r.recent.forget(seen.Key)
		_, _, err = r.Grant(ctx, seen.Key, next, found.Number, now)
		switch {
		case !errors.Is(err, ErrConflict):
			return err
		case !pace.Sleep(ctx, firstPause):
			return context.Cause(ctx)
		}
	}
	return r.busy(seen.Key)
}

// Look implements Inspector.Look with one read for each key.
func (r *Records) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	now, err := r.Now(ctx)
	if err != nil {
		return nil, err
	}
	records, errs := make([]dedupstore.Record, len(keys)), make([]error, len(keys))
	var group sync.WaitGroup
	for i, key := range keys {
		group.Go(func() {
			seen, err := r.Read(ctx, key)
			records[i], errs[i] = seen.Record.Look(key, now.Early), err
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return records, nil
}

// recent are the records of claims that this store granted, as it wrote them last: what comes next need not be read.
// The zero value is ready to use.
type recent struct {
	mu   sync.Mutex
	last map[dedupstore.Key]Revision
}

// maxRecent is how many records are remembered, of a few hundred bytes each.
const maxRecent = 1 << 14

func (r *recent) get(key dedupstore.Key) (Revision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, known := r.last[key]
	return seen, known
}

// put remembers a record that somebody owns, and forgets others, which nobody writes soon. Outcomes are not remembered:
// they may be large, and their bytes are the caller's. If there are too many records, any other goes.
func (r *recent) put(key dedupstore.Key, written Revision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &written.Record
	if rec.State != dedupstore.Running &&
		(rec.State != dedupstore.Publishing || len(rec.Outcome.Result)+len(rec.Outcome.Produced) > 0) {
		delete(r.last, key)
		return
	}
	if r.last == nil {
		r.last = map[dedupstore.Key]Revision{}
	}
	if _, known := r.last[key]; !known && len(r.last) >= maxRecent {
		for other := range r.last {
			delete(r.last, other)
			break
		}
	}
	r.last[key] = written
}

func (r *recent) forget(key dedupstore.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.last, key)
}
