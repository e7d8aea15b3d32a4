package dedupstore

import (
	"context"
	"time"
)

// unlimited is how many attempts the cheap store is told that a key may have: it must not end a run.
const unlimited = 1 << 30

// Claim implements [Store]. The cheap store may refuse; nobody but the inbox grants.
func (f *FrontStore) Claim(ctx context.Context, r Request) (Answer, error) {
	if err := r.Validate(); err != nil {
		return Answer{}, err
	}
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	cheap, held, err := f.ask(ctx, &r)
	if err != nil && f.config.Required {
		f.owed.Store(true)
		return Answer{}, err
	}
	before := foreign(&cheap)
	if believable(&cheap, &r) {
		f.refused.Add(1)
		cheap.Aside = cheap.Aside || !f.owed.Load() // else it is the answer that was wanting
		return cheap, nil
	}
	f.passed.Add(1)
	answer, err := f.inbox.Claim(ctx, r)
	if err != nil {
		f.owed.Store(false)
	}
	if before {
		return f.mayRun(ctx, &r, &cheap, &answer, err)
	}
	if held {
		f.compare(ctx, &r, &cheap, &answer, err)
	}
	return answer, err
}

// ask claims in the cheap store, and says whether that was granted. No answer is the zero Answer. A rerun is for the
// inbox: the cheap store knows of no failures.
func (f *FrontStore) ask(ctx context.Context, r *Request) (answer Answer, held bool, err error) {
	if r.Rerun != 0 {
		return Answer{}, false, nil
	}
	q := *r
	q.MaxAttempts, q.ParkExpired = unlimited, false
	err = f.do(ctx, &r.Key, 0, func(ctx context.Context) (err error) {
		answer, err = f.cheap.Claim(ctx, q)
		return err
	})
	if err != nil {
		return Answer{}, false, err
	}
	return answer, answer.Status == AcquiredRun || answer.Status == AcquiredPublish, nil
}

// believable reports whether a cheap answer counts, and completes it by its note.
func believable(a *Answer, r *Request) bool {
	switch a.Status {
	case Busy: // with nothing to wait for it was let go, or it is a late copy, of which the inbox may know more
		return a.Wait > letGoLease || a.Found == Publishing // what is decided may be foreign: its end tells
	case Done:
		return a.Outcome.Kind == Succeeded && readNote(a, r)
	}
	return false
}

// compare brings the cheap claim, which was granted, in line with the inbox's answer.
func (f *FrontStore) compare(ctx context.Context, r *Request, cheap, answer *Answer, err error) {
	front := FrontClaim{Fence: cheap.Claim.Fence, Scheme: r.Fingerprint.Scheme}
	runs := cheap.Status == AcquiredRun // else it knows a success, which is to be published
	succeeded := err == nil && answer.Outcome.Kind == Succeeded
	// Windows are counted from the end of a run, which was not before the first claim: so this is not after the end of the
	// claimer's own. The inbox may have forgotten it sooner, if the run had a shorter window.
	left := r.Retention - answer.Age
	switch {
	case err == nil && answer.Status == AcquiredRun && runs:
		answer.Claim.Front = front
		f.revive(ctx, cheap, answer)
	case succeeded && answer.Status == AcquiredPublish:
		answer.Claim.Front = front
		if runs {
			_ = f.tell(ctx, cheap.Claim, answer.Outcome, noteOf(r, cheap, answer), r.Retention, false)
		}
	case succeeded && answer.Status == Done && left >= time.Millisecond:
		f.learn(ctx, runs, cheap.Claim, answer.Outcome, noteOf(r, cheap, answer), left)
	default:
		f.letGo(ctx, cheap.Claim)
	}
}

// revive gives a cheap claim its lease back that was let go when the inbox refused the same owner, which now has the run. Not
// if the inbox found a run: its owner may just ask again, which renews no lease. Heartbeats make up for that.
func (f *FrontStore) revive(ctx context.Context, cheap, answer *Answer) {
	if cheap.Found == Running && answer.Found != Running {
		_ = f.extendCheap(ctx, answer.Claim, answer.Claim.Lease)
	}
}

// learn tells the cheap store of a success that others have finished.
func (f *FrontStore) learn(ctx context.Context, runs bool, c Claim, o Outcome, n note, retention time.Duration) {
	var err error
	if runs {
		err = f.tell(ctx, c, o, n, retention, true)
	} else {
		err = f.settleCheap(ctx, c, Published{Retention: retention})
	}
	if err != nil {
		f.letGo(ctx, c)
	}
}
