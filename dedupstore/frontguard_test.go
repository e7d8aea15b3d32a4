package dedupstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver"
)

func frontGuard(t *testing.T, s dedupstore.Store, p oncemill.Policy) *oncemill.Guard {
	t.Helper()
	p.Logger = slog.New(slog.DiscardHandler)
	g, err := oncemill.NewGuard(s, p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A payment is a message whose handler counts its runs and may publish a receipt.
type payment struct {
	oncemill.Call
	runs int
	out  []dedupstore.Produced
	err  error
}

func newPayment(out ...dedupstore.Produced) *payment {
	return &payment{Call: oncemill.Call{Key: frontRequest("1").Key}, out: out}
}

func (p *payment) over(t *testing.T, g *oncemill.Guard) (oncemill.Result, error) {
	t.Helper()
	return g.Run(t.Context(), p.Call, func(context.Context) (dedupstore.Outcome, error) {
		p.runs++
		return dedupstore.Outcome{Result: []byte("paid"), Produced: p.out}, p.err
	})
}

// publishes wants what is published to be whole.
func (p *payment) publishes(t *testing.T, err error) (published *int) {
	published = new(int)
	p.Publish = func(_ context.Context, out []dedupstore.Produced) error {
		for _, m := range out {
			if err == nil && (m.ID != output.ID || !bytes.Equal(m.Payload, output.Payload) || m.Header["h"] != "v") {
				t.Errorf("published %+v", m)
			}
		}
		*published += len(out)
		return err
	}
	return published
}

var errBroker = errors.New("the broker is down")

func waits(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*dedupstore.RecordError](err); !ok {
		t.Errorf("the message was answered %v, want that it waits for somebody to look at a record", err)
	}
}

func TestFront_UnpublishedSuccessFromBeforeWaitsAndIsNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]oncemill.Policy{"high value": oncemill.HighValue(), "irreversible": oncemill.Irreversible()} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, f *frontRig) {
				p := newPayment(output)
				p.publishes(t, errBroker)
				alone, behind := frontGuard(t, f.cheap, policy), frontGuard(t, f, policy)
				if _, err := p.over(t, alone); err == nil {
					t.Fatal("published")
				}
				time.Sleep(time.Hour)
				published := p.publishes(t, nil)
				for range 3 {
					_, err := p.over(t, behind)
					waits(t, err)
					_, err = p.over(t, behind)
					if _, busy := errors.AsType[*oncemill.BusyError](err); !busy { // its lease is let go, and has a moment left
						t.Errorf("at once: %v, want a BusyError", err)
					}
					time.Sleep(2 * time.Millisecond)
				}
				if res, err := p.over(t, alone); err != nil || *published != 1 {
					t.Errorf("settled where it is: %+v, %v, %d published", res, err, *published)
				}
				if res, err := p.over(t, behind); err != nil || !res.Duplicate || string(res.Outcome.Result) != "paid" {
					t.Errorf("afterwards: %+v, %v", res, err)
				}
				if p.runs != 1 {
					t.Errorf("the handler ran %d times", p.runs)
				}
			})
		})
	}
}

func TestFront_ParkedRunFromBeforeWaitsAndRunsOnRequestOnly(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		p := newPayment()
		p.err = errors.New("timeout after the effect")
		if res, err := p.over(t, frontGuard(t, f.cheap, oncemill.Irreversible())); err != nil || res.Outcome.Kind != dedupstore.Unknown || p.runs != 1 {
			t.Fatal(res, err)
		}
		p.err = nil
		g := frontGuard(t, f, oncemill.Irreversible())
		_, err := p.over(t, g)
		waits(t, err)
		if p.runs != 1 {
			t.Errorf("an irreversible handler ran %d times", p.runs)
		}
		parked, err := f.cheap.Store.Claim(t.Context(), frontRequest("1"))
		if err != nil || parked.Outcome.Kind != dedupstore.Unknown {
			t.Fatal(parked, err)
		}
		p.Rerun = parked.Fence
		if res, err := p.over(t, g); err != nil || res.Duplicate || p.runs != 2 {
			t.Errorf("a rerun: %+v, %v", res, err)
		}
		p.Rerun = 0
		if res, err := p.over(t, g); err != nil || !res.Duplicate || p.runs != 2 {
			t.Errorf("afterwards: %+v, %v", res, err)
		}
	})
}

func TestFront_SomebodyIsToldOfMessagesThatWaitOncePerMinute(t *testing.T) {
	virtual(t, func(t *testing.T, _ *frontRig) {
		var log bytes.Buffer
		cheap := newMemory(t, 0)
		f, err := dedupstore.NewFront(cheap, storetest.NewMemoryInbox(newMemory(t, 0)), dedupstore.FrontConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		a, err := cheap.Claim(t.Context(), frontRequest("1"))
		if err != nil {
			t.Fatal(err)
		}
		parked := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: dedupstore.Unknown}, Retention: time.Hour}
		if err := cheap.Settle(t.Context(), a.Claim, parked); err != nil {
			t.Fatal(err)
		}
		for range 120 {
			_, err := f.Claim(t.Context(), frontRequest("1"))
			waits(t, err)
			time.Sleep(time.Second)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 2 || !strings.Contains(log.String(), "unknown") {
			t.Errorf("in two minutes %d lines, want 2:\n%s", n, log.String())
		}
	})
}

func TestFront_OnTheWayBackToTheCheapStoreOutputsArePublishedWhole(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		p := newPayment(output)
		p.publishes(t, errBroker)
		if _, err := p.over(t, frontGuard(t, f, oncemill.HighValue())); err == nil {
			t.Fatal("published")
		}
		time.Sleep(time.Hour)
		published := p.publishes(t, nil)
		if res, err := p.over(t, frontGuard(t, f.cheap, oncemill.HighValue())); err != nil || *published != 1 || p.runs != 1 {
			t.Errorf("%+v, %v, %d published by %d runs", res, err, *published, p.runs)
		}
	})
}

func TestFront_PatienceLeavesTheInboxItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cheap := &spy{Store: newMemory(t, 0), before: hang}
		f, err := dedupstore.NewFront(cheap, storetest.NewMemoryInbox(newMemory(t, 0)), dedupstore.FrontConfig{Patience: time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		g := frontGuard(t, f, oncemill.Policy{Lease: 5 * time.Second})
		for i := range 6 {
			p := newPayment()
			p.Key.ID += string(rune('a' + i))
			if _, err := p.over(t, g); err != nil || p.runs != 1 {
				t.Errorf("call %d: %v after %d runs", i, err, p.runs)
			}
			time.Sleep(1100 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		defer cancel()
		asked, start := cheap.count("claim"), time.Now()
		if _, err := f.Claim(ctx, frontRequest("late")); err != nil || cheap.count("claim") != asked || time.Since(start) != 0 {
			t.Errorf("with no time to spare: %v after %v", err, time.Since(start))
		}
	})
}

func TestFront_SettlementOfWhatCommittedAtTheDeadlineReachesTheCheapStore(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := f.InTx(ctx, a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
			s := dedupstore.Finish{Outcome: paid(), Retention: time.Hour}
			err := f.inbox.Write(ctx, "1")
			<-ctx.Done()
			return s, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, asked := f.claim(frontRequest("1"), dedupstore.Done); asked != 0 {
			t.Error("a duplicate asked the inbox")
		}
	})
}

// A held owner's cheap claim is let go when the inbox refuses it, and it gets the run by the same one.
func TestFront_TwinsOfAnOwnerThatWasLetGoOnceDoNotAskTheInbox(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		f.loses()
		held := frontRequest("1")
		f.claim(held, dedupstore.Busy)
		if err := f.Settle(t.Context(), a.Claim, dedupstore.Release{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
		next, _ := f.claim(held, dedupstore.AcquiredRun)
		for range 3 {
			if _, asked := f.claim(frontRequest("1"), dedupstore.Busy); asked != 0 {
				t.Errorf("a twin asked the inbox %d times", asked)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if err := f.pays(next.Claim); err != nil {
			t.Error(err)
		}
	})
}

// runNothing runs a handler that does nothing.
func runNothing(t *testing.T, g *oncemill.Guard, id string) error {
	t.Helper()
	_, err := g.Run(t.Context(), oncemill.Call{Key: frontRequest(id).Key}, func(context.Context) (dedupstore.Outcome, error) {
		return dedupstore.Outcome{}, nil
	})
	return err
}

// Where the cheap store is required, an answer of it says that what was down is back, also if the inbox is not asked.
func TestFront_OutageOfARequiredCheapStoreIsOverWithAnAnswerToADuplicate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFrontWith(t, dedupstore.FrontConfig{Required: true})
		var log bytes.Buffer
		g, err := oncemill.NewGuard(f, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		run := func(id string) error { return runNothing(t, g, id) }
		for _, id := range []string{"1", "2"} {
			if err := run(id); err != nil {
				t.Fatal(err)
			}
		}
		f.cheap.before = func(context.Context, string) error { return errCheap }
		for n := 0; n < 50 && !strings.Contains(log.String(), "the store is down"); n++ {
			if err := run([]string{"1", "2"}[n%2]); err == nil {
				t.Fatal("a claim was answered")
			}
			time.Sleep(20 * time.Millisecond)
		}
		f.cheap.before = nil
		time.Sleep(2 * time.Second) // as long as it may be left alone
		if err := run("1"); err != nil || strings.Count(log.String(), "the store answers again") != 1 {
			t.Errorf("%v; the log is\n%s", err, &log)
		}
	})
}

// Duplicates that the cheap store answers say nothing of the database.
func TestFront_OutageOfTheDatabaseIsToldOnceThoughTheCheapStoreAnswers(t *testing.T) {
	t.Parallel()
	server := testserver.Postgres(t)
	pool := server.Pool(t)
	store, err := pgstore.New(pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	cheap, err := redisstore.New(testserver.Redis(t).Client(), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	front, err := dedupstore.NewFront(cheap, store.Inbox(), dedupstore.FrontConfig{
		Patience: 30 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	g, err := oncemill.NewGuard(front, oncemill.Policy{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	run := func(id string) error { return runNothing(t, g, id) }
	if err := run("done"); err != nil {
		t.Fatal(err)
	}
	told := func(down, back int) {
		t.Helper()
		if strings.Count(log.String(), "the store is down") != down || strings.Count(log.String(), "the store answers again") != back {
			t.Errorf("logged:\n%s\nwant %d times that the store is down and %d times that it answers again", log.String(), down, back)
		}
	}
	server.Kill()
	pool.Reset() // its backends outlive a killed server for a moment
	answered := 0
	for n, start := 0, time.Now(); n < 100 || time.Since(start) < 2*time.Second; n++ {
		if err := run("done"); err == nil {
			answered++
		}
		if err := run(fmt.Sprint("new ", n)); err == nil {
			t.Fatal("ran without a database")
		}
	}
	told(1, 0)
	if answered == 0 {
		t.Error("no duplicate was answered")
	}
	server.Restart()
	for deadline := time.Now().Add(30 * time.Second); run("after") != nil; {
		if time.Now().After(deadline) {
			t.Fatal("nothing runs again")
		}
		_ = run("done")
	}
	told(1, 1)
}
