package oncemill_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// An outage is a store whose claims fail as it is told, and which remembers them.
type outage struct {
	*faultyStore
	mu     sync.Mutex
	answer func(ctx context.Context, r dedupstore.Request) error // nil: the store's own answer
	asked  []asked
}

type asked struct {
	at  time.Time
	key string
	by  string
}

func newOutage(t testing.TB) *outage { return &outage{faultyStore: newStore(t)} }

func (o *outage) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, o.claimOne)
}

func (o *outage) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	o.mu.Lock()
	o.asked = append(o.asked, asked{time.Now(), r.Key.ID, r.Owner})
	answer := o.answer
	o.mu.Unlock()
	if answer != nil {
		if err := answer(ctx, r); err != nil {
			return dedupstore.Answer{}, err
		}
	}
	return dedupstore.ClaimOne(ctx, o.Store, r)
}

func (o *outage) set(answer func(context.Context, dedupstore.Request) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

// since returns the claims that were sent from a time on.
func (o *outage) since(from time.Time) (found []asked) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.asked {
		if !a.at.Before(from) {
			found = append(found, a)
		}
	}
	return found
}

func refuses(context.Context, dedupstore.Request) error { return errDown }

func hangs(ctx context.Context, _ dedupstore.Request) error {
	<-ctx.Done()
	return ctx.Err()
}

// opened is a store that is down, and a guard that knows it.
func opened(t testing.TB, p oncemill.Policy) (*outage, *oncemill.Guard) {
	t.Helper()
	store := newOutage(t)
	store.set(refuses)
	g := newGuard(t, store, p)
	for i := range 20 {
		g.Run(t.Context(), call(fmt.Sprint("first ", i)), (&counter{}).run)
		time.Sleep(10 * time.Millisecond)
	}
	wantOpen(t, store, g)
	return store, g
}

// wantOpen fails the test if a call is not refused without a question.
func wantOpen(t testing.TB, store *outage, g *oncemill.Guard) {
	t.Helper()
	before := len(store.since(time.Time{}))
	for range 2 { // the first may be a probe
		g.Run(t.Context(), call("open?"), (&counter{}).run)
	}
	if got := len(store.since(time.Time{})) - before; got > 1 {
		t.Fatalf("the store was asked %d times by 2 calls, want at most a probe", got)
	}
}

// held starts calls that wait for the store, and returns what waits for their end.
func taken(t testing.TB, g *oncemill.Guard, n int, h *counter) *sync.WaitGroup {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c := call(fmt.Sprint("held ", i))
			c.MaxWait = 5 * time.Minute
			if _, err := g.Run(t.Context(), c, h.run); err != nil {
				t.Errorf("held call %d: %v", i, err)
			}
		})
	}
	return &wg
}

func TestGuard_StoreDownIsAskedOncePerPauseNotOncePerDelivery(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		store.set(refuses)
		var h counter
		start := time.Now()
		wg := taken(t, newGuard(t, store, oncemill.Policy{}), 300, &h)
		time.Sleep(time.Second)
		if n := len(store.since(start)); n > 300*6+10 {
			t.Errorf("%d claims of 300 calls before it was noticed, want at most a handful each", n)
		}
		noticed := time.Now()
		time.Sleep(time.Minute)
		if n := len(store.since(noticed)); n > 130 || n < 40 {
			t.Errorf("%d claims in a minute, want about one in each pause of 0.5 to 1 s", n)
		}
		h.want(t, 0)
		store.set(nil)
		wg.Wait()
		h.want(t, 300)
		owners := map[string]string{}
		for _, a := range store.since(start) {
			if owners[a.key] == "" {
				owners[a.key] = a.by
			}
			if owners[a.key] != a.by {
				t.Fatalf("%s was claimed under two owner tokens by one call", a.key)
			}
		}
	})
}

func TestGuard_RecoveryLetsAllHeldCallsGoOnAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{})
		var mu sync.Mutex
		var ran []time.Time
		h := counter{then: func(context.Context, int) (dedupstore.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, time.Now())
			return dedupstore.Outcome{}, nil
		}}
		wg := taken(t, g, 300, &h)
		time.Sleep(time.Minute)
		store.set(nil)
		back := time.Now()
		wg.Wait()
		if waited := ran[0].Sub(back); waited > 1250*time.Millisecond {
			t.Errorf("the first call went on after %v, want after a pause of at most 1 s and its jitter", waited)
		}
		if spread := ran[len(ran)-1].Sub(ran[0]); spread > 0 {
			t.Errorf("the last call went on %v after the first, want all at once", spread)
		}
		if n := len(store.since(back)); n != 300 {
			t.Errorf("%d claims of 300 calls after the return, want one each", n)
		}
	})
}

func TestGuard_RefusedCallSaysWhatIsWrongWithoutAQuestion(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, g := opened(t, oncemill.Policy{})
		start := time.Now()
		var h counter
		_, err := g.Run(t.Context(), call("m1"), h.run)
		if e := answertest.Want(t, err, oncemill.StatusStoreDown); !errors.Is(e, errDown) ||
			!strings.HasPrefix(e.Err.Error(), "claim: ") {
			t.Errorf("%v, want the store's last error", err)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("a call that holds for nothing took %v", took)
		}
		h.want(t, 0)
	})
}

func TestGuard_HeldCallEndsWithItsContextOrItsHold(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, g := opened(t, oncemill.Policy{})
		c := call("m1")
		c.MaxWait = 3 * time.Second
		start := time.Now()
		_, err := g.Run(t.Context(), c, nil)
		answertest.Want(t, err, oncemill.StatusStoreDown)
		if took := time.Since(start); took < c.MaxWait || took > c.MaxWait+time.Millisecond { // which is jitter
			t.Errorf("held for %v, want %v", took, c.MaxWait)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if res, err := g.Run(ctx, c, nil); !errors.Is(err, context.DeadlineExceeded) || res.Status != 0 {
			t.Errorf("%v, want the cause of the context", err)
		}
	})
}

func TestGuard_FailOpenDoesNotWaitATimeoutPerMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{StoreDown: oncemill.FailOpen})
		store.set(hangs)
		var h counter
		var mu sync.Mutex
		waited := 0
		var wg sync.WaitGroup
		for i := range 3000 {
			wg.Go(func() {
				start := time.Now()
				res, err := g.Run(t.Context(), call(fmt.Sprint(i)), h.run)
				if err != nil || !res.Bypassed {
					t.Errorf("%+v, %v; want it bypassed", res, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if time.Since(start) > 0 {
					waited++
				}
			})
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
		h.want(t, 3000)
		if waited > 6 || waited == 0 { // probes of 5 s, one after the other, in half a minute
			t.Errorf("%d of 3000 messages waited for the store, want the few that probed it", waited)
		}
	})
}

// A run without a guard is tried again as its handler says.
func TestGuard_FailOpenHeedsWhatTheErrorSays(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, g := opened(t, oncemill.Policy{StoreDown: oncemill.FailOpen})
		_, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			return dedupstore.Outcome{}, oncemill.Uncounted(oncemill.RetryAfter(10*time.Minute, errRefused))
		})
		if got := answertest.Want(t, err, oncemill.StatusRetry); got.Wait != 10*time.Minute || !got.Uncounted {
			t.Errorf("%+v, want a retry in 10m that does not count", got)
		}
	})
}

// What a handler makes of the context of an unguarded run is forgotten with the run: the context around it may be that
// of the process.
func TestGuard_UnguardedRunsLeaveNothingAtTheirContext(t *testing.T) {
	virtual(t, func(t *testing.T) {
		_, open := opened(t, oncemill.Policy{StoreDown: oncemill.FailOpen})
		for name, g := range map[string]*oncemill.Guard{
			"bypass": open, "shadow": newGuard(t, newStore(t), oncemill.Policy{Shadow: true}),
		} {
			var waiting atomic.Int32
			process, end := context.WithCancel(t.Context())
			var kept context.Context
			work := func(ctx context.Context) (dedupstore.Outcome, error) {
				kept = ctx
				within, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return dedupstore.Outcome{}, within.Err()
			}
			if _, err := g.Run(watchedContext{process, &waiting}, call("m1"), work); err != nil {
				t.Fatal(err)
			}
			if n := waiting.Load(); n != 0 || kept.Err() != nil {
				t.Errorf("%s: %d wait for the end of the process; the context ended with %v", name, n, kept.Err())
			}
			end()
			if <-kept.Done(); !errors.Is(kept.Err(), context.Canceled) {
				t.Errorf("%s: %v after the end of the process", name, kept.Err())
			}
		}
	})
}

func TestGuard_FailOpenGuardsAgainWhenTheStoreAnswers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{StoreDown: oncemill.FailOpen})
		store.set(nil)
		time.Sleep(time.Second)
		for range 3 {
			if res, err := g.Run(t.Context(), call("m1"), (&counter{}).run); err != nil || res.Bypassed {
				t.Errorf("%+v, %v; want it guarded", res, err)
			}
		}
	})
}

func TestGuard_OpenBreakerDoesNotBypassAKnownOwner(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		abandonedClaim(t, store, "m1")
		g := newGuard(t, store, oncemill.Policy{StoreDown: oncemill.FailOpen})
		var h, bypassed counter
		var wg sync.WaitGroup
		wg.Go(func() {
			c := call("m1")
			c.MaxWait = 10 * time.Second
			_, err := g.Run(t.Context(), c, h.run)
			answertest.Want(t, err, oncemill.StatusStoreDown)
		})
		synctest.Wait() // it knows that the key is busy
		store.set(refuses)
		for range 100 {
			g.Run(t.Context(), call("m2"), bypassed.run)
			time.Sleep(10 * time.Millisecond)
		}
		wantOpen(t, store, g)
		wg.Wait()
		h.want(t, 0)
		bypassed.want(t, 100)
	})
}

func TestGuard_AbandonedProbeIsFollowedByAnother(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{})
		time.Sleep(time.Second)
		store.set(hangs)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := g.Run(ctx, call("m1"), nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the cause of the context", err)
		}
		store.set(refuses)
		wantOpen(t, store, g)
		time.Sleep(time.Second)
		store.set(nil)
		if _, err := g.Run(t.Context(), call("m2"), (&counter{}).run); err != nil {
			t.Errorf("%v, want it to be the next probe", err)
		}
	})
}

func TestGuard_ProbeThatHangsDoesNotHoldUpForever(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{})
		var h counter
		wg := taken(t, g, 100, &h)
		time.Sleep(10 * time.Second)
		store.set(hangs)
		time.Sleep(1500 * time.Millisecond) // one call is probing
		store.set(nil)
		back := time.Now()
		wg.Wait()
		if took := time.Since(back); took > 5*time.Second+1250*time.Millisecond {
			t.Errorf("held for %v after the return, want at most the 5 s of an operation and a pause", took)
		}
		h.want(t, 100)
	})
}

func TestGuard_TimeHeldWithoutAQuestionIsNotTakenFromTheLease(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, g := opened(t, oncemill.Policy{Lease: time.Second})
		time.Sleep(10 * time.Second)
		store.set(hangs) // for the probe that keeps all others from asking
		go g.Run(t.Context(), call("probe"), nil)
		synctest.Wait()
		store.set(nil)
		var h counter
		taken(t, g, 1, &h).Wait()
		if store.extended() != 0 {
			t.Errorf("a lease of which nothing was used was renewed %d times before its handler started",
				store.extended())
		}
	})
}

func TestGuard_SettlesAreTriedWhileClaimsAreNot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		g := newGuard(t, store, oncemill.Policy{})
		res, err := g.Run(t.Context(), call("m1"), func(context.Context) (dedupstore.Outcome, error) {
			store.set(refuses)
			c := call("m2")
			c.MaxWait = time.Second
			_, err := g.Run(t.Context(), c, nil)
			answertest.Want(t, err, oncemill.StatusStoreDown)
			wantOpen(t, store, g)
			return dedupstore.Outcome{}, nil
		})
		if err != nil || res.Outcome.Kind != dedupstore.Succeeded {
			t.Errorf("%+v, %v; want the outcome recorded", res, err)
		}
	})
}

func TestGuard_OutageIsLoggedOnceWhenItBeginsAndOnceWhenItEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newOutage(t)
		store.set(refuses)
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		var h counter
		wg := taken(t, g, 100, &h)
		time.Sleep(time.Minute)
		store.set(nil)
		wg.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if !strings.Contains(lines[0], "operation=claim took=") {
			t.Errorf("%s: want what failed, and how long it took", lines[0])
		}
		if len(lines) != 2 || !strings.Contains(lines[0], errDown.Error()) ||
			!strings.Contains(lines[0], "policy=closed") ||
			!strings.Contains(lines[1], "answers again") || !strings.Contains(lines[1], "down=") {
			t.Errorf("logged:\n%s\nwant that it is down, why, and after which time it answered", log.String())
		}
	})
}

// The first error is that of the connection which broke, and says nothing of why there is no other.
func TestGuard_OutageThatLastsIsLoggedAgainWithWhatIsWrongByThen(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newOutage(t)
		store.set(refuses)
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		wg := taken(t, g, 10, &counter{})
		time.Sleep(time.Second)
		store.set(func(context.Context, dedupstore.Request) error { return errors.New("the certificate has expired") })
		time.Sleep(150 * time.Second)
		store.set(nil)
		wg.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 4 || !strings.Contains(lines[1], "still down") ||
			!strings.Contains(lines[1], "the certificate has expired") ||
			!strings.Contains(lines[2], "still down") || !strings.Contains(lines[3], "answers again") {
			t.Errorf("logged:\n%s\nwant that it is down, each minute that it still is, and why, and that it answered",
				log.String())
		}
	})
}

// The same, where one message at a time is handled.
func TestGuard_OutageThatOneMessageMeetsForLongIsLoggedAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newOutage(t)
		store.set(refuses)
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		wg := taken(t, g, 1, &counter{})
		time.Sleep(10 * time.Second)
		store.set(func(context.Context, dedupstore.Request) error { return errors.New("the certificate has expired") })
		time.Sleep(150 * time.Second)
		store.set(nil)
		wg.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 4 || !strings.Contains(lines[1], "claims fail") ||
			!strings.Contains(lines[1], "the certificate has expired") ||
			!strings.Contains(lines[2], "claims fail") || !strings.Contains(lines[3], "answers again") {
			t.Errorf("logged:\n%s\nwant that claims fail, each minute that they still do, and why, and that one "+
				"was answered", log.String())
		}
	})
}

// A consumer with one message at a time has no second key that could fail.
func TestGuard_OutageThatOneMessageMeetsIsLoggedOnceWhenItBeginsAndOnceWhenItEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newOutage(t)
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 2 {
			log.Reset()
			store.set(refuses)
			wg := taken(t, g, 1, &counter{})
			time.Sleep(time.Minute)
			store.set(nil)
			wg.Wait()
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], errDown.Error()) ||
				!strings.Contains(lines[0], "policy=closed") ||
				!strings.Contains(lines[0], `id="held 0"`) || !strings.Contains(lines[1], "answers again") ||
				!strings.Contains(lines[1], "down=") {
				t.Errorf("logged:\n%s\nwant that claims fail, why, and after which time one was answered", log.String())
			}
			time.Sleep(100 * 24 * time.Hour) // the key is forgotten
		}
	})
}

// A panic in a claim, as in a hook of the client, is an error of its call, and tells nothing of the store.
func TestGuard_ClaimThatPanicsIsNotLoggedAsAnOutageOfNoMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newStore(t)
		store.claim = func(func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
			panic("a hook of the client")
		}
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for range 5 {
			_, err := g.Run(t.Context(), call("m1"), nil)
			answertest.Want(t, err, oncemill.StatusStoreDown)
			time.Sleep(time.Second)
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", log.String())
		}
	})
}

func TestGuard_HiccupsOfTheStoreAreNotLogged(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newOutage(t)
		store.set(refuses)
		g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		wg := taken(t, g, 1, &counter{})
		time.Sleep(500 * time.Millisecond)
		store.set(nil)
		wg.Wait()
		if log.Len() > 0 {
			t.Errorf("logged: %s", log.String())
		}
	})
}

// A claim that was sent before the store failed may be answered after the breaker has opened. That closes nothing, and
// must not let the claims after it pass an open breaker. Otherwise one failure, much later, would end a pause that
// nobody began.
func TestGuard_AnswerThatComesAfterTheBreakerHasOpenedDoesNotLeaveItOpenInSilence(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		var log bytes.Buffer
		g := newGuard(t, store, oncemill.Policy{
			StoreDown: oncemill.FailOpen, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		slow := make(chan struct{})
		store.set(func(_ context.Context, r dedupstore.Request) error {
			if r.Key.ID == "slow" {
				<-slow
				return nil
			}
			return errDown
		})
		var wg sync.WaitGroup
		g.Run(t.Context(), call("first"), (&counter{}).run) // from now on failures count
		wg.Go(func() { g.Run(t.Context(), call("slow"), (&counter{}).run) })
		synctest.Wait()
		for i := range 5 {
			time.Sleep(50 * time.Millisecond)
			g.Run(t.Context(), call(fmt.Sprint("down ", i)), (&counter{}).run)
		}
		wantOpen(t, store, g)
		close(slow)
		wg.Wait()
		store.set(nil)
		for i := range 10 { // the store is well, and asked by everybody soon
			time.Sleep(time.Second)
			g.Run(t.Context(), call(fmt.Sprint("well ", i)), (&counter{}).run)
		}
		if !strings.Contains(log.String(), "answers again") {
			t.Errorf("nobody says that the store is back:\n%s", log.String())
		}
		store.set(refuses)
		g.Run(t.Context(), call("one failure"), (&counter{}).run)
		store.set(nil)
		if res, err := g.Run(t.Context(), call("another key"), (&counter{}).run); err != nil || res.Bypassed {
			t.Errorf("after one failure: %+v, %v; want it guarded", res, err)
		}
	})
}

// A fault that keeps messages waiting although the store answers opens no breaker, and needs somebody all the same.
func TestGuard_StoreThatRefusesIsLoggedNowAndThen(t *testing.T) {
	virtual(t, func(t *testing.T) {
		for word, refusal := range map[string]error{
			"version 9":   &dedupstore.RecordError{Key: "k", Problem: "has version 9"},
			"full":        dedupstore.ErrFull,
			"not durable": dedupstore.ErrNotDurable,
		} {
			var log bytes.Buffer
			store := newStore(t)
			store.claim = func(func() (dedupstore.Answer, error)) (dedupstore.Answer, error) {
				return dedupstore.Answer{}, refusal
			}
			g := newGuard(t, store, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			c := call("m1")
			c.MaxWait = 10 * time.Second
			for range 10 {
				_, err := g.Run(t.Context(), c, nil)
				answertest.Want(t, err, oncemill.StatusStoreDown)
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if len(lines) != 2 || !strings.Contains(lines[0], word) || !strings.Contains(lines[0], "id=m1") {
				t.Errorf("%v in 100 s, logged:\n%s\nwant one line a minute that names the message",
					refusal, log.String())
			}
		}
	})
}

// While claims fail, a few ask at a time. A caller that gives up does not wait for the timeouts of those.
func TestBreaker_AClaimThatWaitsForItsTurnEndsWithItsCaller(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newOutage(t)
		g := newGuard(t, store, oncemill.Policy{})
		nothing := func(context.Context) (dedupstore.Outcome, error) { return dedupstore.Outcome{}, nil }
		store.set(refuses)
		if _, err := g.Run(t.Context(), call("first"), nothing); err == nil {
			t.Fatal("a store that refuses has granted a claim")
		}
		store.set(hangs)
		var others sync.WaitGroup
		for i := range 10 {
			others.Go(func() { _, _ = g.Run(t.Context(), call(fmt.Sprint(i)), nothing) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := g.Run(ctx, call("late"), nothing)
		if took := time.Since(start); took != 10*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it took %v and returned %v, want 10ms and the end of its context", took, err)
		}
		others.Wait()
	})
}
