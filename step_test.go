package oncemill_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/answertest"
)

// stepKey is the key of a step of the message.
func stepKey(id, step string) dedupstore.Key {
	k := key(id)
	k.Handler += "/step=" + step
	return k
}

func (s *faultyStore) lookAt(t testing.TB, k dedupstore.Key) dedupstore.Record {
	t.Helper()
	seen, err := s.Store.(dedupstore.Inspector).Look(t.Context(), []dedupstore.Key{k})
	if err != nil {
		t.Fatal(err)
	}
	return seen[0]
}

// shopping is a handler of three steps that counts their effects.
type shopping struct {
	charged, booked, mailed atomic.Int32
	mail                    func() error
}

func (s *shopping) handle(ctx context.Context) (string, error) {
	charge, err := oncemill.Step(ctx, "charge", func(context.Context) (int32, error) { return s.charged.Add(1), nil })
	if err != nil {
		return "", err
	}
	parcel, err := oncemill.Step(ctx, "parcel", func(context.Context) (string, error) {
		s.booked.Add(1)
		return "P" + string('0'+charge), nil
	})
	if err != nil {
		return "", err
	}
	return oncemill.Step(ctx, "mail", func(context.Context) (string, error) {
		s.mailed.Add(1)
		if s.mail != nil {
			if err := s.mail(); err != nil {
				return "", err
			}
		}
		return parcel, nil
	})
}

func (s *shopping) want(t testing.TB, charged, booked, mailed int32) {
	t.Helper()
	if s.charged.Load() != charged || s.booked.Load() != booked || s.mailed.Load() != mailed {
		t.Errorf("charged %d times, booked %d, mailed %d; want %d, %d, %d", s.charged.Load(), s.booked.Load(),
			s.mailed.Load(), charged, booked, mailed)
	}
}

// Where contents are not compared, those of steps are not either, whatever the policy of their guard.
func TestStep_OfAMessageWhoseContentIsNotCompared(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{Mismatch: oncemill.MismatchIgnore})
		steps := newGuard(t, store, oncemill.Policy{})
		charged := 0
		for attempt := range 3 {
			c := call("a")
			c.Fingerprint = dedupstore.Fingerprint{Scheme: "bytes", Sum: strconv.Itoa(attempt)}
			_, err := oncemill.Do(t.Context(), g, c, func(ctx context.Context) (int, error) {
				n, err := oncemill.StepIn(ctx, steps, "charge", func(context.Context) (int, error) {
					charged++
					return charged, nil
				})
				if err == nil && attempt < 2 {
					err = oncemill.RetryAfter(0, errRefused)
				}
				return n, err
			})
			if (attempt < 2) != errors.Is(err, errRefused) {
				t.Errorf("attempt %d: %v", attempt+1, err)
			}
		}
		if charged != 1 {
			t.Errorf("charged %d times", charged)
		}
	})
}

func TestStep_IsRememberedByLaterAttemptsAndOtherProcesses(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		errMail := errors.New("mail server is away")
		s := &shopping{mail: func() error { return errMail }}
		_, err := oncemill.Do(t.Context(), newGuard(t, store, oncemill.Policy{}), call("a"), s.handle)
		retry := answertest.Want(t, err, oncemill.StatusRetry)
		if !errors.Is(err, errMail) || !strings.Contains(err.Error(), `step "mail"`) {
			t.Errorf("error %v does not name the step and its error", err)
		}
		time.Sleep(retry.Wait)
		s.mail = nil
		got, err := oncemill.Do(t.Context(), newGuard(t, store, oncemill.Policy{}), call("a"), s.handle)
		if err != nil || got != "P1" {
			t.Errorf("got %q, %v", got, err)
		}
		s.want(t, 1, 1, 2)
	})
}

func TestStep_CrashBetweenEffectAndRecordRepeatsThatStepAndNoOther(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		dead, s := make(chan struct{}), &shopping{}
		s.mail = func() error {
			store.down.Store(true) // the process is cut off here, with its mail sent
			close(dead)
			<-t.Context().Done()
			return errDown
		}
		ctx, kill := context.WithCancel(t.Context())
		go func() { _, _ = oncemill.Do(ctx, newGuard(t, store, oncemill.Policy{}), call("a"), s.handle) }()
		<-dead
		time.Sleep(2 * time.Minute) // its leases end
		store.down.Store(false)
		s.mail = nil
		later := call("a")
		later.MaxWait = time.Hour
		if _, err := oncemill.Do(t.Context(), newGuard(t, store, oncemill.Policy{}), later, s.handle); err != nil {
			t.Error(err)
		}
		s.want(t, 1, 1, 2)
		kill()
	})
}

func TestStep_ErrorsSteerAsInAHandler(t *testing.T) {
	errCard := errors.New("card refused")
	cases := map[string]struct {
		policy oncemill.Policy
		err    error
		want   func(t *testing.T, err error)
	}{
		"any": {oncemill.Policy{}, errCard, func(t *testing.T, err error) {
			if r := answertest.Want(t, err, oncemill.StatusRetry); r.Uncounted || r.Attempt != 1 {
				t.Errorf("%+v", r)
			}
		}},
		"Permanent": {oncemill.Policy{}, oncemill.Permanent(errCard), func(t *testing.T, err error) {
			if f := answertest.Want(t, err, oncemill.StatusDone); f.Outcome.Kind != dedupstore.Failed ||
				f.Outcome.Exhausted {
				t.Errorf("%+v", f.Outcome)
			}
		}},
		"RetryAfter": {oncemill.Policy{}, oncemill.RetryAfter(time.Hour, errCard), func(t *testing.T, err error) {
			if r := answertest.Want(t, err, oncemill.StatusRetry); r.Wait != time.Hour {
				t.Errorf("%+v", r)
			}
		}},
		"Uncounted": {oncemill.Policy{}, oncemill.Uncounted(errCard), func(t *testing.T, err error) {
			if r := answertest.Want(t, err, oncemill.StatusRetry); !r.Uncounted {
				t.Errorf("%+v", r)
			}
		}},
		"any, parked": {oncemill.Irreversible(), errCard, func(t *testing.T, err error) {
			if f := answertest.Want(t, err, oncemill.StatusDone); f.Outcome.Kind != dedupstore.Unknown {
				t.Errorf("%+v", f.Outcome)
			}
		}},
		"RetryAfter, parked": {oncemill.Irreversible(), oncemill.RetryAfter(time.Second, errCard),
			func(t *testing.T, err error) {
				if f := answertest.Want(t, err, oncemill.StatusDone); f.Outcome.Kind != dedupstore.Unknown {
					t.Errorf("%+v", f.Outcome)
				}
			}},
		"NoEffect, parked": {oncemill.Irreversible(), oncemill.NoEffect(errCard), func(t *testing.T, err error) {
			answertest.Want(t, err, oncemill.StatusRetry)
		}},
		"Permanent, parked": {oncemill.Irreversible(), oncemill.Permanent(errCard), func(t *testing.T, err error) {
			if f := answertest.Want(t, err, oncemill.StatusDone); f.Outcome.Kind != dedupstore.Failed {
				t.Errorf("%+v", f.Outcome)
			}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				g := newGuard(t, newStore(t), c.policy)
				_, err := oncemill.Do(t.Context(), g, call("a"), func(ctx context.Context) (int, error) {
					return oncemill.Step(ctx, "charge", func(context.Context) (int, error) { return 0, c.err })
				})
				if !errors.Is(err, errCard) {
					t.Errorf("error %v is not the step's", err)
				}
				c.want(t, err)
			})
		})
	}
}

// A failure is the message's to remember. So a rerun of the message runs the step again, and keeps what succeeded.
func TestStep_FailuresAreNotRemembered(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g, s := newGuard(t, store, oncemill.Policy{MaxAttempts: 2}), &shopping{}
		s.mail = func() error { return oncemill.Permanent(errors.New("no such address")) }
		c := call("a")
		for range 5 { // more often than a message may be tried
			_, err := oncemill.Do(t.Context(), g, c, s.handle)
			c.Rerun = answertest.Want(t, err, oncemill.StatusDone).Fence
		}
		s.mail = nil
		if _, err := oncemill.Do(t.Context(), g, c, s.handle); err != nil {
			t.Error(err)
		}
		s.want(t, 1, 1, 6)
	})
}

// A step that panics is one that failed: the message's backoff decides when it runs again.
func TestStep_PanicIsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g, s := newGuard(t, newStore(t), oncemill.Policy{}), &shopping{}
		s.mail = func() error { panic("no template") }
		_, err := oncemill.Do(t.Context(), g, call("a"), s.handle)
		as[*oncemill.PanicError](t, err)
		time.Sleep(answertest.Want(t, err, oncemill.StatusRetry).Wait)
		s.mail = nil
		if _, err := oncemill.Do(t.Context(), g, call("a"), s.handle); err != nil {
			t.Error(err)
		}
		s.want(t, 1, 1, 2)
	})
}

func TestStep_UnknownIsTheMessagesUntilSomebodyDecides(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g, s := newGuard(t, store, oncemill.Irreversible()), &shopping{}
		s.mail = func() error { return errors.New("the connection broke") }
		c := call("a")
		for range 2 {
			_, err := oncemill.Do(t.Context(), g, c, s.handle)
			f := answertest.Want(t, err, oncemill.StatusDone)
			if f.Outcome.Kind != dedupstore.Unknown {
				t.Fatalf("%+v", f.Outcome)
			}
			c.Rerun = f.Fence
		}
		s.want(t, 1, 1, 1) // the rerun of the message is none of the step
		if seen := store.lookAt(t, stepKey("a", "mail")); seen.Outcome.Kind != dedupstore.Unknown {
			t.Errorf("the record of the step is %+v", seen)
		}
		decided := dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte(`"P1"`)}}
		step := store.lookAt(t, stepKey("a", "mail"))
		if err := store.Store.(dedupstore.Inspector).Change(t.Context(), step, decided); err != nil {
			t.Fatal(err)
		}
		if got, err := oncemill.Do(t.Context(), g, c, s.handle); err != nil || got != "P1" {
			t.Errorf("got %q, %v", got, err)
		}
		s.want(t, 1, 1, 1)
	})
}

func TestStep_ANameTwiceInARunIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		for _, c := range []struct{ first, second, says string }{
			{"charge", "charge", "before"}, {"charge", "", "empty"}, {"charge", "a/step=b", "/step="},
			{"charge", strings.Repeat("x", 130), "Key.Handler"},
		} {
			ran := false
			_, err := oncemill.Do(t.Context(), g, call("a"+c.second[:min(9, len(c.second))]),
				func(ctx context.Context) (int, error) {
					one := func(context.Context) (int, error) { return 1, nil }
					if _, err := oncemill.Step(ctx, c.first, one); err != nil {
						t.Error(err)
					}
					return oncemill.Step(ctx, c.second, func(context.Context) (int, error) { ran = true; return 2, nil })
				})
			if as[*dedupstore.InvalidError](t, err); ran || !strings.Contains(err.Error(), c.says) {
				t.Errorf("after %q, step %q: ran %v, error %v", c.first, c.second, ran, err)
			}
		}
	})
}

func TestStep_HasARunOfItsOwnThatStaysTheSame(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{})
		seen := map[string]int{}
		for range 2 {
			_, err := oncemill.Do(t.Context(), g, call("a"), func(ctx context.Context) (int, error) {
				outer := oncemill.FromContext(ctx)
				_, err := oncemill.Step(ctx, "charge", func(ctx context.Context) (int, error) {
					r := oncemill.FromContext(ctx)
					if r.Key != stepKey("a", "charge") || r.ID("x") == outer.ID("x") {
						t.Errorf("the step runs as %v", r.Key)
					}
					seen[r.ID("x")]++
					nested, err := oncemill.Step(ctx, "charge", func(context.Context) (int, error) { return 4, nil })
					return nested, errors.Join(err, errors.New("again"))
				})
				return 0, err
			})
			time.Sleep(answertest.Want(t, err, oncemill.StatusRetry).Wait)
		}
		if len(seen) != 1 {
			t.Errorf("the step had IDs %v", seen)
		}
	})
}

// The message may end Window after a step, and be run again while its failure is kept.
func TestStep_IsRememberedForTheMessagesWindowAtLeast(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		short := newGuard(t, newStore(t), oncemill.Policy{Window: time.Minute})
		g := newGuard(t, store, oncemill.Policy{Window: time.Hour, FailureWindow: 10 * time.Hour})
		charged, stamped := 0, 0
		c := call("a")
		handle := func(ctx context.Context) (int, error) {
			if _, err := oncemill.Step(ctx, "charge", func(context.Context) (int, error) {
				charged++
				return 1, nil
			}); err != nil {
				return 0, err
			}
			if _, err := oncemill.StepIn(ctx, short, "stamp", func(context.Context) (int, error) {
				stamped++
				return 1, nil
			}); err != nil {
				return 0, err
			}
			if charged+stamped > 0 && c.Rerun == 0 {
				return 0, oncemill.RetryAfter(59*time.Minute, errors.New("not yet"))
			}
			return 0, oncemill.Permanent(errors.New("never"))
		}
		_, err := oncemill.Do(t.Context(), g, c, handle)
		time.Sleep(answertest.Want(t, err, oncemill.StatusRetry).Wait)
		c.Rerun = 1 // which names no outcome yet
		_, err = oncemill.Do(t.Context(), g, c, handle)
		c.Rerun = answertest.Want(t, err, oncemill.StatusDone).Fence
		time.Sleep(10*time.Hour - time.Second)
		_, err = oncemill.Do(t.Context(), g, c, handle)
		if f := answertest.Want(t, err, oncemill.StatusDone); f.Duplicate || charged != 1 || stamped != 1 {
			t.Errorf("duplicate: %v; charged %d times, stamped %d", f.Duplicate, charged, stamped)
		}
	})
}

// A run that takes over from a zombie waits for the step that it holds, and gets its result.
func TestStep_OfAZombieIsWaitedFor(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store := newStore(t)
		g := newGuard(t, store, oncemill.Policy{})
		var charged atomic.Int32
		handle := func(ctx context.Context) (int32, error) {
			return oncemill.Step(ctx, "charge", func(context.Context) (int32, error) {
				time.Sleep(10 * time.Second)
				return charged.Add(1), nil
			})
		}
		go func() { // it has the step, and no message any more
			_, err := oncemill.Do(t.Context(), newGuard(t, store, oncemill.Policy{}), call("a"), handle)
			if err == nil {
				t.Error("the zombie's outcome was taken")
			}
		}()
		time.Sleep(time.Second)
		if err := dedupstore.SettleOne(t.Context(), store.Store, store.claimOf(t, "a"), dedupstore.Release{}); err != nil {
			t.Fatal(err)
		}
		got, err := oncemill.Do(t.Context(), g, call("a"), handle)
		if err != nil || got != 1 || charged.Load() != 1 {
			t.Errorf("got %d, %v; charged %d times", got, err, charged.Load())
		}
	})
}

// claimOf is the claim under which a message runs, for a thief.
func (s *faultyStore) claimOf(t testing.TB, id string) dedupstore.Claim {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.claims {
		if r.Key == key(id) {
			return dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: s.look(t, id).Fence, Attempt: 1, Lease: r.Lease,
				Retention: r.Retention}
		}
	}
	t.Fatalf("nobody claimed %s", id)
	return dedupstore.Claim{}
}

// A busy step, or a store that is away, says nothing about the message: the attempt is given back.
func TestStep_ThatCannotBeClaimedCostsNoAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		store, steps := newStore(t), newStore(t)
		g, other := newGuard(t, store, oncemill.Policy{}), newGuard(t, steps, oncemill.Policy{})
		handle := func(ctx context.Context) (int, error) {
			return oncemill.StepIn(ctx, other, "charge", func(context.Context) (int, error) { return 1, nil })
		}
		steps.down.Store(true)
		_, err := oncemill.Do(t.Context(), g, call("a"), handle)
		r := answertest.Want(t, err, oncemill.StatusRetry)
		if answertest.Want(t, r.Handler, oncemill.StatusStoreDown); !r.Uncounted {
			t.Errorf("%+v", r)
		}
		steps.down.Store(false)
		if _, err := dedupstore.ClaimOne(t.Context(), steps.Store, dedupstore.Request{
			Key: stepKey("b", "charge"), Owner: "0123456789abcdef", Lease: time.Hour, Retention: time.Hour, MaxAttempts: 1,
		}); err != nil {
			t.Fatal(err)
		}
		_, err = oncemill.Do(t.Context(), g, call("b"), handle)
		r = answertest.Want(t, err, oncemill.StatusRetry)
		if b := answertest.Want(t, r.Handler, oncemill.StatusBusy); b.Wait < 50*time.Minute {
			t.Errorf("%+v", b)
		}
		if !r.Uncounted || r.Wait < 50*time.Minute {
			t.Errorf("%+v", r)
		}
	})
}

func TestStep_NeedsARunOfItsOwn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		one := func(context.Context) (int, error) { return 1, nil }
		if _, err := oncemill.Step(t.Context(), "charge", one); err == nil ||
			!strings.Contains(err.Error(), "outside a guarded run") {
			t.Errorf("outside of a run: %v", err)
		}
		g := newGuard(t, newStore(t), oncemill.Policy{})
		_, err := oncemill.Do(t.Context(), g, call("a"), func(ctx context.Context) (int, error) {
			return oncemill.StepIn(ctx, nil, "charge", one)
		})
		as[*dedupstore.InvalidError](t, err)
		ends := together(t, g, func(ctx context.Context, calls []int) []error {
			_, err := oncemill.Step(ctx, "charge", one)
			return []error{err, nil}
		}, "c", "d")
		if r := ends[0]; r.Status != oncemill.StatusRetry || !r.Uncounted ||
			!strings.Contains(r.Handler.Error(), "batches") {
			t.Errorf("in a batch: %+v", r)
		}
		forged := call("b")
		forged.Key.Handler = "charge/step=mail"
		_, err = oncemill.Do(t.Context(), g, forged, one)
		as[*dedupstore.InvalidError](t, err)
	})
}

func TestStep_InAnInboxNamesStepIn(t *testing.T) {
	virtual(t, func(t *testing.T) {
		inbox := newGuard(t, newInbox(t), oncemill.Policy{})
		one := func(context.Context) (int, error) { return 1, nil }
		_, err := oncemill.Do(t.Context(), inbox, call("a"), func(ctx context.Context) (int, error) {
			return oncemill.Step(ctx, "charge", one)
		})
		if r := answertest.Want(t, err, oncemill.StatusRetry); !r.Uncounted ||
			!strings.Contains(err.Error(), "StepIn(ctx, guard") {
			t.Errorf("%+v", r)
		}
		leased, s := newGuard(t, newStore(t), oncemill.Policy{}), 0
		for attempt := range 2 {
			_, err = oncemill.Do(t.Context(), inbox, call("b"), func(ctx context.Context) (int, error) {
				if _, err := oncemill.StepIn(ctx, leased, "charge", func(context.Context) (int, error) {
					s++
					return 1, nil
				}); err != nil {
					return 0, err
				}
				if attempt == 0 {
					return 0, oncemill.RetryAfter(0, errors.New("rolled back"))
				}
				return 0, nil
			})
		}
		if err != nil || s != 1 {
			t.Errorf("charged %d times; %v", s, err)
		}
	})
}

// BenchmarkStep compares a call with nothing inside, one with a step, and one with another call: what a step adds is
// what the other call adds.
func BenchmarkStep(b *testing.B) {
	one := func(context.Context) (int, error) { return 1, nil }
	for name, inside := range map[string]func(ctx context.Context, g *oncemill.Guard, id string) (int, error){
		"nothing": func(context.Context, *oncemill.Guard, string) (int, error) { return 1, nil },
		"step": func(ctx context.Context, _ *oncemill.Guard, _ string) (int, error) {
			return oncemill.Step(ctx, "charge", one)
		},
		"do": func(ctx context.Context, g *oncemill.Guard, id string) (int, error) {
			return oncemill.Do(ctx, g, oncemill.Call{Key: stepless(id)}, one)
		},
	} {
		b.Run(name, func(b *testing.B) {
			g := newGuard(b, newStore(b).Store, oncemill.Policy{})
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				id := strconv.Itoa(n)
				if _, err := oncemill.Do(b.Context(), g, call(id), func(ctx context.Context) (int, error) {
					return inside(ctx, g, id)
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// stepless is a key in another handler.
func stepless(id string) dedupstore.Key {
	k := key(id)
	k.Handler = "charge-step-charge"
	return k
}

// The message says when it is tried again. A step has no delay of its own.
func TestStep_ThatFailedIsDueWithItsMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		slow := oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Hour, Max: time.Hour}}
		g, steps, tried := newGuard(t, newStore(t), oncemill.Policy{}), newGuard(t, newStore(t), slow), 0
		for range 2 {
			began := time.Now()
			_, err := oncemill.Do(t.Context(), g, call("a"), func(ctx context.Context) (int, error) {
				n, err := oncemill.StepIn(ctx, steps, "charge", func(context.Context) (int, error) {
					tried++
					return 0, errors.New("away")
				})
				return n, oncemill.RetryAfter(0, err)
			})
			if answertest.Want(t, err, oncemill.StatusRetry); time.Since(began) > 0 {
				t.Errorf("attempt %d waited %v", tried, time.Since(began))
			}
		}
		if tried != 2 {
			t.Errorf("the step ran %d times", tried)
		}
	})
}

// An ID that comes again with other content, after its message is forgotten, gets no step of that.
func TestStep_OfOtherContentIsAnError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Policy{Window: time.Hour, FailureWindow: 10 * time.Hour})
		run := func(content string) (string, error) {
			c := call("a")
			c.Fingerprint = dedupstore.Fingerprint{Scheme: "test", Sum: content}
			return oncemill.Do(t.Context(), g, c, func(ctx context.Context) (string, error) {
				return oncemill.Step(ctx, "charge", func(context.Context) (string, error) { return content, nil })
			})
		}
		if got, err := run("first"); err != nil || got != "first" {
			t.Fatalf("%q, %v", got, err)
		}
		time.Sleep(time.Hour + time.Minute)
		if got, err := run("first"); err != nil || got != "first" {
			t.Errorf("the same content: %q, %v", got, err)
		}
		time.Sleep(time.Hour + time.Minute)
		got, err := run("second")
		if failed := answertest.Want(t, err, oncemill.StatusDone); failed.Outcome.Kind != dedupstore.Failed {
			t.Errorf("other content got %q, and ended with %+v: no retry mends that", got, failed)
		}
	})
}

// A step inside a step of a guard with a short window is remembered as long as the message needs it.
func TestStep_InAStepIsRememberedAsLong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		short := newGuard(t, newStore(t), oncemill.Policy{Window: time.Minute, FailureWindow: time.Minute})
		g := newGuard(t, newStore(t), oncemill.Policy{Window: 7 * 24 * time.Hour})
		charged, tries := 0, 0
		handle := func(ctx context.Context) (int, error) {
			return oncemill.StepIn(ctx, short, "outer", func(ctx context.Context) (int, error) {
				if _, err := oncemill.Step(ctx, "inner", func(context.Context) (int, error) {
					charged++
					return 1, nil
				}); err != nil {
					return 0, err
				}
				if tries++; tries == 1 {
					return 0, oncemill.RetryAfter(time.Hour, errors.New("not yet"))
				}
				return 1, nil
			})
		}
		_, err := oncemill.Do(t.Context(), g, call("a"), handle)
		time.Sleep(answertest.Want(t, err, oncemill.StatusRetry).Wait)
		if _, err := oncemill.Do(t.Context(), g, call("a"), handle); err != nil || charged != 1 || tries != 2 {
			t.Errorf("charged %d times in %d tries: %v", charged, tries, err)
		}
	})
}

// The record of a step may say that it has failed, or that nobody knows, when somebody else has decided that.
func TestStep_OutcomeThatSomebodyElseDecidedIsTheMessages(t *testing.T) {
	for name, c := range map[string]struct {
		policy oncemill.Policy
		step   dedupstore.Kind
		want   dedupstore.Kind
	}{
		"failed":           {oncemill.Policy{}, dedupstore.Failed, dedupstore.Failed},
		"unknown":          {oncemill.Policy{}, dedupstore.Unknown, dedupstore.Failed},
		"failed, parking":  {oncemill.Irreversible(), dedupstore.Failed, dedupstore.Failed},
		"unknown, parking": {oncemill.Irreversible(), dedupstore.Unknown, dedupstore.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				store := newStore(t)
				claim := abandonedClaim(t, store, "m1", func(r *dedupstore.Request) { r.Key.Handler += "/step=pay" })
				finish := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: c.step, Reason: "r"}}
				if err := dedupstore.SettleOne(t.Context(), store, claim, finish); err != nil {
					t.Fatal(err)
				}
				res, err := newGuard(t, store, c.policy).Run(t.Context(), call("m1"),
					func(ctx context.Context) (dedupstore.Outcome, error) {
						_, err := oncemill.Step(ctx, "pay", func(context.Context) (int, error) {
							t.Error("the step runs")
							return 0, nil
						})
						return dedupstore.Outcome{}, err
					})
				if err != nil || res.Outcome.Kind != c.want {
					t.Errorf("ended with %+v, %v, want %s", res, err, c.want)
				}
			})
		})
	}
}

// The error of a step is the handler's own, with the step's name before it.
func TestStep_NamesTheStepInItsError(t *testing.T) {
	virtual(t, func(t *testing.T) {
		g := newGuard(t, newStore(t), oncemill.Irreversible())
		for id, cause := range map[string]error{"a": errors.New("declined"), "b": oncemill.Permanent(errors.New("declined"))} {
			_, _ = g.Run(t.Context(), call(id), func(ctx context.Context) (dedupstore.Outcome, error) {
				_, err := oncemill.Step(ctx, "pay", func(context.Context) (int, error) { return 1, cause })
				if want := `step "pay": ` + cause.Error(); err == nil || err.Error() != want {
					t.Errorf("the error is %q, want %q", err, want)
				}
				return dedupstore.Outcome{}, err
			})
		}
	})
}
