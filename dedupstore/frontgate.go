package dedupstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// How long a cheap store that fails is left alone: twice as long after each further failure. A few may be a pause of the
// server or a broken connection; each run that is not settled there keeps its duplicates waiting for a lease.
const (
	maxFrontFailures = 3
	minFrontPause    = 100 * time.Millisecond
	maxFrontPause    = time.Second
)

// errFrontShut says that an operation was not sent.
var errFrontShut = errors.New("dedupstore: the cheap store fails, and is left alone for a moment")

// A frontGate keeps claims from waiting one after the other for a cheap store, or a shard of it, that fails.
type frontGate struct {
	mu       sync.Mutex
	failures int           // in a row
	pause    time.Duration // zero: it answers
	until    time.Time
	probing  bool
}

// pass reports whether an operation may be sent: any if the store answers, else one at a time after a pause.
func (g *frontGate) pass() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pause == 0 {
		return true
	}
	if g.probing || time.Now().Before(g.until) {
		return false
	}
	g.probing = true
	return true
}

// answered notes how an operation ended, and reports whether that is news.
func (g *frontGate) answered(ok bool) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.pause
	g.probing = false
	g.failures++
	switch {
	case ok:
		g.failures, g.pause = 0, 0
		return was != 0
	case g.failures < maxFrontFailures:
		return false
	case was == 0:
		g.pause = minFrontPause
	case time.Now().Before(g.until): // sent together with one that failed before
		return false
	default:
		g.pause = min(2*was, maxFrontPause)
	}
	g.until = time.Now().Add(g.pause)
	return was == 0
}

// minFrontPatience is what an operation that follows the inbox's answer has, even if nothing is left of the caller's time:
// each that is not made keeps duplicates waiting for a lease. It is the default of FrontConfig.Patience.
const minFrontPatience = 50 * time.Millisecond

// patience is how long an operation may take: of what is left of the caller's time no more than a quarter, as the inbox
// needs the rest, but not less than the least. A claim, which has none, waits for all of that quarter where the cheap store is required:
// nothing else answers it.
func (f *FrontStore) patience(ctx context.Context, least time.Duration) time.Duration {
	end, bounded := ctx.Deadline()
	switch {
	case !bounded:
		return f.config.Patience
	case f.config.Required && least == 0:
		return time.Until(end) / 4
	}
	return min(f.config.Patience, max(time.Until(end)/4, least))
}

// do sends an operation to the cheap store and waits for it as long as that store is worth. It goes on although ctx is
// cancelled, like all that may have an effect. With less than a millisecond to wait it is not sent.
func (f *FrontStore) do(ctx context.Context, key *Key, least time.Duration, operation func(context.Context) error) error {
	shard := shardOf(ctx, f.cheap, *key)
	gate, patience := f.gate(shard), f.patience(ctx, least)
	if patience < time.Millisecond || !gate.pass() {
		f.skipped.Add(1)
		return errFrontShut
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := calmly(bounded, operation)
	ok := frontAnswered(err)
	if !ok {
		f.failed.Add(1)
	}
	if gate.answered(ok) {
		f.report(ctx, shard, err, ok)
	}
	return err
}

// calmly makes an error of a panic in the client of the cheap store, as in a hook: it costs no more than any other failure.
func calmly(ctx context.Context, operation func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("dedupstore: the cheap store panicked: %v", p)
		}
	}()
	return operation(ctx)
}

func (f *FrontStore) gate(shard string) *frontGate {
	if g, ok := f.gates.Load(shard); ok {
		return g.(*frontGate)
	}
	g, _ := f.gates.LoadOrStore(shard, &frontGate{})
	return g.(*frontGate)
}

// frontAnswered reports whether the store works, whatever it said.
func frontAnswered(err error) bool {
	if _, unreadable := errors.AsType[*RecordError](err); unreadable {
		return true
	}
	return err == nil || errors.Is(err, ErrClaimLost) || errors.Is(err, ErrFull) || errors.Is(err, ErrNotDurable)
}

func (f *FrontStore) report(ctx context.Context, shard string, err error, ok bool) {
	if ok {
		f.config.Logger.InfoContext(ctx, "oncemill: the cheap store before the inbox answers again", slog.String("shard", shard))
		return
	}
	if f.config.Required {
		f.config.Logger.ErrorContext(ctx, "oncemill: the cheap store before the inbox fails; claims wait for it, as it is required",
			slog.String("shard", shard), slog.Any("error", err))
		return
	}
	f.config.Logger.WarnContext(ctx, "oncemill: the cheap store before the inbox fails; claims go to the inbox alone",
		slog.String("shard", shard), slog.Any("error", err))
}
