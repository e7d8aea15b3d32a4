package dedupstore_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var output = dedupstore.Produced{ID: "out", Topic: "receipts", Key: "k", Header: map[string]string{"h": "v"}, Payload: []byte("12.50")}

func TestFront_DuplicateIsRefusedWithoutTheInbox(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		c := f.done("1")
		time.Sleep(time.Minute)
		a, asked := f.claim(frontRequest("1"), dedupstore.Done)
		if asked != 0 {
			t.Errorf("the inbox was asked %d times", asked)
		}
		truth, err := f.inbox.Claim(t.Context(), frontRequest("1"))
		truth.Aside = true
		if err != nil || a.Fence != c.Fence || !reflect.DeepEqual(a, truth) {
			t.Errorf("the answer is %+v, the inbox's %+v, %v", a, truth, err)
		}
		if s := f.Stats(); s != (dedupstore.FrontStats{Refused: 1, Passed: 1}) {
			t.Errorf("%+v", s)
		}
	})
}

func TestFront_TwinIsRefusedWithoutTheInboxAsLongAsTheRunIsExtended(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		for range 5 {
			time.Sleep(a.Claim.Lease * 2 / 3)
			if err := f.Extend(t.Context(), a.Claim, a.Claim.Lease); err != nil {
				t.Fatal(err)
			}
			if _, asked := f.claim(frontRequest("1"), dedupstore.Busy); asked != 0 {
				t.Errorf("the inbox was asked %d times", asked)
			}
		}
		if err := f.Settle(t.Context(), a.Claim, dedupstore.Release{Delay: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if a, asked := f.claim(frontRequest("1"), dedupstore.Busy); asked != 0 || a.Found != dedupstore.Retryable || a.Wait != time.Minute {
			t.Errorf("a retry that is not due was answered %+v by %d claims of the inbox", a, asked)
		}
		time.Sleep(time.Minute)
		if next, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun); next.Claim.Attempt != 2 {
			t.Errorf("%+v", next)
		}
	})
}

func TestFront_OutputsAreKeptByTheCheapStoreUntilTheyArePublished(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		r := frontRequest("1")
		a, _ := f.claim(r, dedupstore.AcquiredRun)
		if err := f.pays(a.Claim, output); err != nil {
			t.Fatal(err)
		}
		if busy, asked := f.claim(frontRequest("1"), dedupstore.Busy); asked != 0 || busy.Found != dedupstore.Publishing {
			t.Errorf("a twin of the publish step: %+v by %d claims of the inbox", busy, asked)
		}
		time.Sleep(a.Claim.Lease) // its holder dies
		next, _ := f.claim(frontRequest("1"), dedupstore.AcquiredPublish)
		if p := next.Outcome.Produced; len(p) != 1 || string(p[0].Payload) != "12.50" {
			t.Errorf("to publish: %+v", p)
		}
		if err := f.Settle(t.Context(), next.Claim, dedupstore.Published{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		done, asked := f.claim(frontRequest("1"), dedupstore.Done)
		if asked != 0 || done.Fence != a.Claim.Fence || len(done.Outcome.Produced) != 1 || done.Outcome.Produced[0].ID != "out" || done.Outcome.Reason != "" {
			t.Errorf("%+v by %d claims of the inbox", done, asked)
		}
		kept, err := f.cheap.Store.Claim(t.Context(), frontRequest("1"))
		if err != nil || kept.Status != dedupstore.Done || kept.Outcome.Produced[0].Payload != nil || kept.Outcome.Produced[0].Header != nil {
			t.Errorf("the cheap store keeps %+v, %v", kept, err)
		}
	})
}

func TestFront_LargeOutputsAreKeptByTheInboxAlone(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		large := output
		large.Payload = make([]byte, 256<<10)
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		if err := f.pays(a.Claim, large); err != nil {
			t.Fatal(err)
		}
		time.Sleep(a.Claim.Lease) // its holder dies
		next, _ := f.claim(frontRequest("1"), dedupstore.AcquiredPublish)
		if p := next.Outcome.Produced; len(p) != 1 || len(p[0].Payload) != len(large.Payload) {
			t.Errorf("%d messages are to be published", len(p))
		}
		if err := f.Settle(t.Context(), next.Claim, dedupstore.Published{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
		f.claim(frontRequest("1"), dedupstore.Done)
		if _, asked := f.claim(frontRequest("1"), dedupstore.Done); asked != 0 {
			t.Error("what the first duplicate learned is not known")
		}
		for _, s := range f.cheap.settled {
			if s, ok := s.(dedupstore.Finish); ok && len(s.Outcome.Produced[0].Payload) > 0 {
				t.Errorf("the cheap store was given %d bytes", len(s.Outcome.Produced[0].Payload))
			}
		}
	})
}

func TestFront_PublishStepThatTheCheapStoreForgotIsToldAgain(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, _ := f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		if err := f.pays(a.Claim, output); err != nil {
			t.Fatal(err)
		}
		f.loses()
		time.Sleep(a.Claim.Lease)
		next, _ := f.claim(frontRequest("1"), dedupstore.AcquiredPublish)
		if _, asked := f.claim(frontRequest("1"), dedupstore.Busy); asked != 0 {
			t.Errorf("the inbox was asked %d times by a twin", asked)
		}
		if err := f.Settle(t.Context(), next.Claim, dedupstore.Published{Retention: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if done, asked := f.claim(frontRequest("1"), dedupstore.Done); asked != 0 || done.Fence != a.Claim.Fence {
			t.Errorf("%+v by %d claims of the inbox", done, asked)
		}
	})
}

func TestFront_FailuresAreAnsweredByTheInbox(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		for id, o := range map[string]dedupstore.Outcome{
			"failed":    {Kind: dedupstore.Failed, Reason: "card refused"},
			"exhausted": {Kind: dedupstore.Failed, Exhausted: true},
			"unknown":   {Kind: dedupstore.Unknown, Reason: "timeout"},
		} {
			a, _ := f.claim(frontRequest(id), dedupstore.AcquiredRun)
			if err := f.Settle(t.Context(), a.Claim, dedupstore.Finish{Outcome: o, Retention: time.Hour}); err != nil {
				t.Fatal(err)
			}
			dup, asked := f.claim(frontRequest(id), dedupstore.Done)
			if asked != 1 || dup.Outcome.Kind != o.Kind || dup.Outcome.Reason != o.Reason {
				t.Errorf("%s: %+v by %d claims of the inbox", id, dup, asked)
			}
			r := frontRequest(id)
			r.Rerun = dup.Fence
			before := f.cheap.count("claim")
			if _, asked := f.claim(r, dedupstore.AcquiredRun); asked != 1 || f.cheap.count("claim") != before {
				t.Errorf("%s: a rerun asked the inbox %d times, and the cheap store %d times", id, asked, f.cheap.count("claim")-before)
			}
		}
		for _, s := range f.cheap.settled {
			if s, ok := s.(dedupstore.Finish); ok {
				t.Errorf("the cheap store was told %+v", s.Outcome)
			}
		}
	})
}

// What a guard over the cheap store alone may have left there.
func TestFront_OfWhatTheCheapStoreHoldsFromBeforeNothingWithAnOutcomeRunsAgain(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		content := func(id, sum string) (r dedupstore.Request) {
			r = frontRequest(id)
			if id == "other content" {
				r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: sum}
			}
			return r
		}
		plant := func(id string, settle ...dedupstore.Settlement) {
			a, err := f.cheap.Store.Claim(t.Context(), content(id, "old"))
			if err != nil || a.Status != dedupstore.AcquiredRun {
				t.Fatal(a, err)
			}
			if err := f.cheap.Store.Extend(t.Context(), a.Claim, a.Claim.Lease); err != nil {
				t.Fatal(err)
			}
			for _, s := range settle {
				if err := f.cheap.Store.Settle(t.Context(), a.Claim, s); err != nil {
					t.Fatal(err)
				}
			}
		}
		finish := func(o dedupstore.Outcome) dedupstore.Finish {
			return dedupstore.Finish{Outcome: o, Retention: time.Hour}
		}
		plant("failed", finish(dedupstore.Outcome{Kind: dedupstore.Failed}))
		plant("exhausted", finish(dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true}))
		plant("unknown", finish(dedupstore.Outcome{Kind: dedupstore.Unknown}))
		plant("publishing", finish(paid(output)))
		plant("dead letter", finish(dedupstore.Outcome{Kind: dedupstore.Failed, Produced: []dedupstore.Produced{output}}))
		plant("many attempts", dedupstore.Release{})
		plant("started")
		plant("other content", finish(paid()))
		plant("done", finish(paid()))
		time.Sleep(time.Minute) // leases end
		for _, id := range []string{"failed", "exhausted", "unknown", "publishing", "dead letter"} {
			r := frontRequest(id)
			r.MaxAttempts = 1
			same := r
			for _, r := range []dedupstore.Request{r, same, frontRequest(id), frontRequest(id)} { // nor do attempts run out
				_, err := f.Claim(t.Context(), r)
				if _, refused := errors.AsType[*dedupstore.RecordError](err); !refused {
					t.Errorf("%s: %v, want a RecordError", id, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
			r = frontRequest(id)
			r.Rerun = 1
			a, _ := f.claim(r, dedupstore.AcquiredRun)
			if err := f.pays(a.Claim); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			f.effects(id, 1)
			f.claim(frontRequest(id), dedupstore.Done)
			time.Sleep(2 * time.Millisecond)
			f.claim(frontRequest(id), dedupstore.Done)
		}
		for _, id := range []string{"many attempts", "started", "other content"} {
			r := content(id, "new")
			r.MaxAttempts, r.ParkExpired = 1, true
			a, asked := f.claim(r, dedupstore.AcquiredRun)
			if asked != 1 || a.Claim.Attempt != 1 {
				t.Errorf("%s: %+v by %d claims of the inbox", id, a, asked)
			}
			if err := f.pays(a.Claim); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			f.effects(id, 1)
			f.claim(content(id, "new"), dedupstore.Done)
		}
		if a, asked := f.claim(frontRequest("done"), dedupstore.Done); asked != 0 || string(a.Outcome.Result) != "paid" {
			t.Errorf("a success was answered %+v by %d claims of the inbox", a, asked)
		}
	})
}

// What the docs admit: nobody else knows of what the cheap store decided alone.
func TestFront_ASuccessFromBeforeRunsAgainWhenTheCheapStoreDoesNotAnswer(t *testing.T) {
	for name, fault := range map[string]func(*frontRig){
		"it is down": func(f *frontRig) {
			f.cheap.before = func(context.Context, string) error { return errors.New("down") }
		},
		"it is slower than the patience": func(f *frontRig) {
			f.cheap.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		},
		"it has lost its records": (*frontRig).loses,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, f *frontRig) {
				a, err := f.cheap.Store.Claim(t.Context(), frontRequest("1"))
				if err == nil {
					err = f.cheap.Store.Settle(t.Context(), a.Claim, dedupstore.Finish{Outcome: paid(), Retention: time.Hour})
				}
				if err != nil {
					t.Fatal(err)
				}
				f.claim(frontRequest("1"), dedupstore.Done)
				fault(f)
				f.claim(frontRequest("1"), dedupstore.AcquiredRun)
			})
		})
	}
}

func TestFront_WithTheCheapStoreRequiredASuccessFromBeforeWaitsForIt(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(context.Context, string) error{
		"it is down": func(context.Context, string) error { return errCheap },
		"it is slow": func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() },
		"it is full": func(context.Context, string) error { return dedupstore.ErrFull },
		"it cannot read the record": func(context.Context, string) error {
			return &dedupstore.RecordError{Key: "1", Problem: "cannot be read"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFrontWith(t, dedupstore.FrontConfig{Required: true})
				a, err := f.cheap.Store.Claim(t.Context(), frontRequest("1"))
				if err == nil {
					err = f.cheap.Store.Settle(t.Context(), a.Claim, dedupstore.Finish{Outcome: paid(), Retention: time.Hour})
				}
				if err != nil {
					t.Fatal(err)
				}
				f.cheap.before = fault
				for range 2 * 3 { // more than it takes until the cheap store is left alone
					if a, err := f.Claim(t.Context(), frontRequest("1")); err == nil || a.Status != "" || f.truth.count("claim") > 0 {
						t.Fatalf("a claim was answered %q, %v, after %d claims of the inbox; want an error and none", a.Status, err, f.truth.count("claim"))
					}
				}
				rerun := frontRequest("1")
				rerun.Rerun = 1
				if _, err := f.Claim(t.Context(), rerun); errors.Is(err, errCheap) || f.truth.count("claim") != 1 {
					t.Errorf("a rerun was answered %v by %d claims of the inbox, want its own answer", err, f.truth.count("claim"))
				}
				f.cheap.before = nil
				time.Sleep(time.Second) // as long as it may be left alone
				f.claim(frontRequest("1"), dedupstore.Done)
			})
		})
	}
}

// Where the cheap store is required, nothing else answers a claim, and one that is always slower than Patience is not down.
func TestFront_WithTheCheapStoreRequiredASlowOneIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFrontWith(t, dedupstore.FrontConfig{Required: true})
		f.cheap.before = func(ctx context.Context, _ string) error {
			select {
			case <-time.After(400 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if a, err := f.Claim(ctx, frontRequest("1")); err != nil || a.Status != dedupstore.AcquiredRun {
			t.Errorf("a claim was answered %q, %v, want %s", a.Status, err, dedupstore.AcquiredRun)
		}
		f.cheap.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := f.Claim(ctx, frontRequest("2")); err == nil || time.Since(began) != 500*time.Millisecond {
			t.Errorf("a claim failed with %v after %v, want a quarter of its time", err, time.Since(began))
		}
	})
}

func TestFront_ForgottenSuccessIsLearnedAndNotKeptForLongerThanItsWindow(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		c := f.done("1")
		time.Sleep(20 * time.Minute)
		f.loses()
		r := frontRequest("1")
		r.Trace = "trace of the duplicate"
		if _, asked := f.claim(r, dedupstore.Done); asked != 1 {
			t.Errorf("the inbox was asked %d times", asked)
		}
		time.Sleep(10 * time.Minute)
		a, asked := f.claim(frontRequest("1"), dedupstore.Done)
		if asked != 0 || a.Fence != c.Fence || a.Age != 30*time.Minute || a.Trace != "trace of the run" || string(a.Outcome.Result) != "paid" || a.Outcome.Reason != "" {
			t.Errorf("%+v by %d claims of the inbox", a, asked)
		}
		time.Sleep(30*time.Minute + time.Millisecond)
		f.claim(frontRequest("1"), dedupstore.AcquiredRun)
	})
}

func TestFront_OtherContentIsNotTakenForADuplicate(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		a, b := frontRequest("1"), frontRequest("1")
		a.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "A"}
		b.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: "B"}
		first, _ := f.claim(a, dedupstore.AcquiredRun)
		if err := f.pays(first.Claim); err != nil {
			t.Fatal(err)
		}
		f.claim(b, dedupstore.Mismatch)
		f.loses()
		f.claim(b, dedupstore.Mismatch) // now the cheap store knows the wrong content only
		a.Owner = frontRequest("1").Owner
		f.claim(a, dedupstore.Done)
		f.claim(b, dedupstore.Mismatch)
		f.loses()
		none := frontRequest("1")
		f.claim(none, dedupstore.Done) // and now none
		f.claim(b, dedupstore.Mismatch)
		other := frontRequest("1")
		other.Fingerprint = dedupstore.Fingerprint{Scheme: "fields", Sum: "A"}
		f.loses()
		f.claim(other, dedupstore.Done)
		f.claim(b, dedupstore.Mismatch)
	})
}

func TestFront_TheCheapStoreIsToldAfterTheCommitOnly(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		told := func() int { return f.cheap.count("settle") }
		boom := errors.New("no")
		a, _ := f.claim(frontRequest("fails"), dedupstore.AcquiredRun)
		if err := f.InTx(t.Context(), a.Claim, func(context.Context) (dedupstore.Settlement, error) { return nil, boom }); err != boom { //nolint:errorlint // itself
			t.Errorf("%v", err)
		}
		if told() != 0 {
			t.Error("it was told of a transaction that was rolled back")
		}
		a, _ = f.claim(frontRequest("1"), dedupstore.AcquiredRun)
		err := f.InTx(t.Context(), a.Claim, func(ctx context.Context) (dedupstore.Settlement, error) {
			return dedupstore.Finish{Outcome: paid(), Retention: time.Hour}, f.inbox.Write(ctx, "1")
		})
		f.cheap.before = nil
		if err != nil || told() != 1 {
			t.Errorf("%v; it was told %d times", err, told())
		}
		f.truth.before = func(_ context.Context, operation string) error {
			if operation == "settle" {
				return errCheap
			}
			return nil
		}
		a, _ = f.claim(frontRequest("unrecorded"), dedupstore.AcquiredRun)
		if err := f.Settle(t.Context(), a.Claim, dedupstore.Release{}); !errors.Is(err, errCheap) || told() != 1 {
			t.Errorf("%v; it was told %d times", err, told())
		}
	})
}

// Claims that the inbox refuses count in the cheap store as runs that crashed.
func TestFront_TheCheapStoreEndsNoRunByItself(t *testing.T) {
	virtual(t, func(t *testing.T, f *frontRig) {
		strict := func() dedupstore.Request {
			r := frontRequest("1")
			r.MaxAttempts, r.ParkExpired = 1, true
			return r
		}
		a, _ := f.claim(strict(), dedupstore.AcquiredRun)
		f.loses()
		for range 5 {
			f.claim(strict(), dedupstore.Busy)
			time.Sleep(2 * time.Millisecond)
		}
		if err := f.Settle(t.Context(), a.Claim, dedupstore.Release{Uncounted: true}); err != nil {
			t.Fatal(err)
		}
		a, _ = f.claim(strict(), dedupstore.AcquiredRun)
		if _, asked := f.claim(strict(), dedupstore.Busy); asked != 0 {
			t.Error("a twin asked the inbox")
		}
		if err := f.pays(a.Claim); err != nil {
			t.Error(err)
		}
		if _, asked := f.claim(strict(), dedupstore.Done); asked != 0 {
			t.Error("a duplicate asked the inbox")
		}
	})
}
