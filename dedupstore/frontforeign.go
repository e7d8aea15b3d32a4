package dedupstore

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// frontTellEvery is how often somebody is told of messages that wait for what is left in the cheap store.
const frontTellEvery = time.Minute

// foreign reports whether a cheap answer is an outcome that no front has told of: a guard had the cheap store alone.
func foreign(a *Answer) bool {
	return (a.Status == Done || a.Status == AcquiredPublish) && !strings.HasPrefix(a.Outcome.Reason, notePrefix)
}

// mayRun passes on what the inbox answers about a key for which the cheap store holds a foreign outcome, which was not
// believed; but a run is not granted: it would be the second one of what has an outcome. Somebody has to look at it.
func (f *FrontStore) mayRun(ctx context.Context, r *Request, cheap, answer *Answer, err error) (Answer, error) {
	if cheap.Status == AcquiredPublish {
		f.letGo(ctx, cheap.Claim)
	}
	switch {
	case err != nil:
		return Answer{}, err
	case answer.Status == AcquiredRun:
		f.giveBack(ctx, answer.Claim)
	case answer.Status == Busy && answer.Wait == 0: // it was given back by this owner, who asks again
	default:
		return *answer, nil
	}
	refusal := &RecordError{Key: r.Key.String(), Problem: "the cheap store before the inbox holds an outcome from before (" +
		left(cheap) + ") that the inbox does not know: settle or delete it there, or ask for a rerun"}
	f.tellOf(ctx, refusal)
	return Answer{}, refusal
}

func left(cheap *Answer) string {
	if cheap.Status == AcquiredPublish {
		return string(cheap.Outcome.Kind) + ", not published"
	}
	return string(cheap.Outcome.Kind)
}

// frontGiveBack bounds how long the inbox is waited for that gets a run back.
const frontGiveBack = time.Second

// giveBack releases a run that nobody has begun. If that fails, the run's lease has to end.
func (f *FrontStore) giveBack(ctx context.Context, c Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), frontGiveBack)
	defer cancel()
	_ = f.inbox.Settle(ctx, c, Release{Reason: "the cheap store holds an outcome from before", Uncounted: true})
}

// tellOf logs a refusal, of many at once the first.
func (f *FrontStore) tellOf(ctx context.Context, refusal *RecordError) {
	now, last := time.Now().UnixNano(), f.told.Load()
	if now-last < int64(frontTellEvery) || !f.told.CompareAndSwap(last, now) {
		return
	}
	f.config.Logger.ErrorContext(ctx, "oncemill: a message waits because of what the cheap store holds from before; there may be more",
		slog.String("key", refusal.Key), slog.Any("error", refusal))
}
