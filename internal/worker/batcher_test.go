package worker

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
)

// batches makes the loop one of a handler of batches.
func (r *rig) batches(slots int, b Batches, handle func(ctx context.Context, ids []string) []error) {
	r.t.Helper()
	policy := oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Second, Max: time.Second}}
	config := consumer.Config{Policy: policy}
	if r.dead != nil {
		config.DeadLetters, config.DeadLetterTopic = r.dead, "dead"
	}
	once := consumertest.NewProcessor(r.t, r.store, config)
	r.loop = New(Work{
		Once: once, Handler: "insert", Batches: b.WithDefaults(),
		Batch: func(ctx context.Context, messages []Message) []error {
			var ids []string
			for _, m := range messages {
				ids = append(ids, fakeOf(m).id)
			}
			r.mu.Lock()
			r.began = append(r.began, strings.Join(ids, "+"))
			r.mu.Unlock()
			return handle(ctx, ids)
		},
	}, slots)
}

func succeed(context.Context, []string) []error { return nil }

func TestBatches_AreBounded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		held := func(context.Context, []string) []error { <-release; return nil }
		r.batches(100, Batches{Most: 100, Bytes: 100}, held)
		a := r.assign()
		a.Receive(r.messages("0")) // one at a time
		synctest.Wait()
		messages := r.messages("1", "2", "3", "4", "5", "6", "7")
		for i, size := range []int{10, 10, 80, 60, 50, 300, 1} {
			fakeOf(messages[i].Message).payload = make([]byte, size)
		}
		a.Receive(messages)
		close(release)
		r.wants("batches", &r.began, "0", "1+2+3", "4", "5", "6", "7")
		r.ends(a)
	})
}

func TestBatches_SeveralAtOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.batches(5, Batches{Most: 2}, func(context.Context, []string) []error { <-release; return nil })
		a := r.assign()
		a.Receive(r.messages(numbered(7)...))
		r.wants("batches", &r.began, "0+1", "2+3") // the fifth slot is that of 4, which waits for a batch to end
		close(release)
		r.wants("acked", &r.acked, numbered(7)...)
		r.ends(a)
	})
}

func TestBatches_LingerForMore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(12, Batches{Most: 3, Linger: time.Second}, succeed)
		a := r.assign()
		a.Receive(r.messages("1"))
		time.Sleep(900 * time.Millisecond)
		a.Receive(r.messages("2"))
		r.wants("batches", &r.began)
		time.Sleep(100 * time.Millisecond)
		r.wants("batches", &r.began, "1+2")
		a.Receive(r.messages("3", "4", "5"))
		r.wants("batches", &r.began, "1+2", "3+4+5")
		a.Receive(r.messages("6"))
		r.wants("batches", &r.began, "1+2", "3+4+5")
		time.Sleep(time.Second)
		r.wants("batches", &r.began, "1+2", "3+4+5", "6")
		r.ends(a)
	})
}

// A batch that has all slots cannot grow, and does not wait.
func TestBatches_WithAllSlotsDoNotLinger(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(2, Batches{Most: 64, Linger: time.Hour}, succeed)
		a := r.assign()
		began := time.Now()
		a.Receive(r.messages("1", "2", "3", "4"))
		r.wants("batches", &r.began, "1+2", "3+4")
		if took := time.Since(began); took > time.Minute {
			t.Errorf("they took %v", took)
		}
		r.ends(a)
	})
}

// Nothing lingers after a halt, neither what is given back then nor what runs because it is on its last delivery.
func TestBatches_NothingLingersInTheDrain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(8, Batches{Most: 4, Linger: time.Hour}, succeed)
		a := r.assign()
		messages := r.returnable("1", "a1", "a2")
		messages[1].Last, messages[2].Last = true, true
		a.Receive(messages)
		synctest.Wait()
		began := time.Now()
		r.ends(a)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("the drain took %v", took)
		}
		r.wants("batches", &r.began, "a1", "a2")
		r.wants("given back", &r.back, "1")
	})
}

// Batches of what is halted do not start, and those of others go on.
func TestBatches_AHaltStartsNone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.batches(8, Batches{Most: 4}, func(context.Context, []string) []error { <-release; return nil })
		r.loop.batcher.atOnce = 1
		halted, other, waiting := r.assign(), r.assign(), r.assign()
		halted.Receive(r.messages("0", "1")) // a message alone is no batch
		synctest.Wait()
		halted.Receive(r.returnable("2"))
		other.Receive(r.messages("3"))
		waiting.Receive(r.returnable("4"))
		halted.Halt()
		waiting.Halt()
		synctest.Wait()
		r.wants("given back", &r.back, "2", "4") // although a batch goes on
		if !closed(waiting.Ended()) {
			t.Error("an assignment waits for a batch of others")
		}
		if n := halted.Cancel(nil); n != 2 {
			t.Errorf("%d messages were being handled, want 2", n)
		}
		close(release)
		r.wants("batches", &r.began, "0+1", "3")
		r.wants("acked", &r.acked, "0", "1", "3")
		r.ends(halted)
		r.ends(other)
	})
}

// A cancellation gives up what waits for a batch on its last delivery, although another batch goes on.
func TestBatches_ACancellationStartsNone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		release := make(chan struct{})
		r.batches(4, Batches{Most: 4}, func(context.Context, []string) []error { <-release; return nil })
		a := r.assign()
		a.Receive(r.messages("0", "1"))
		synctest.Wait()
		last := r.returnable("2")
		last[0].Last = true
		a.Receive(last)
		a.Halt()
		r.wants("given back by the halt", &r.back)
		a.Cancel(nil)
		r.wants("given back", &r.back, "2")
		close(release)
		r.wants("batches", &r.began, "0+1")
		r.ends(a)
	})
}

// A halt may come when a message has its slot and is not in the batcher yet: then no flush sees it.
func TestBatches_AHaltBeforeTheBatcherStartsNone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(4, Batches{Most: 4}, succeed)
		a := r.assign()
		messages := r.returnable("1", "2")
		fakeOf(messages[0].Message).starts = a.Halt
		a.Receive(messages)
		r.wants("batches", &r.began)
		r.wants("given back", &r.back, "1", "2")
		r.ends(a)
	})
}

// If nothing in a batch may start any more, others get its slots, also if the batch is made before the flush.
func TestBatches_ThatMayNotStartLeaveTheirSlots(t *testing.T) {
	for name, end := range map[string]func(a *Assignment){
		"halted":                       (*Assignment).Halt,
		"cancelled, without its flush": func(a *Assignment) { a.cancel(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				r := newRig(t)
				r.batches(1, Batches{Most: 1, Linger: time.Second}, succeed)
				r.loop.batcher.Most = 4 // than there are slots: a message alone lingers
				ended, other := r.assign(), r.assign()
				messages := r.messages("1")
				messages[0].Last = name != "halted"
				ended.Receive(messages)
				other.Receive(r.messages("2"))
				synctest.Wait()
				end(ended)
				time.Sleep(time.Minute)
				r.wants("began", &r.began, "2")
				r.wants("acked", &r.acked, "2")
				r.ends(ended)
				r.ends(other)
			})
		})
	}
}

func TestBatches_EachErrorSteersItsOwnMessage(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(8, Batches{}, func(_ context.Context, ids []string) []error {
			if len(ids) < 3 {
				return nil
			}
			errs := make([]error, len(ids))
			errs[1], errs[2] = errFailed, oncemill.Permanent(errFailed)
			return errs
		})
		a := r.assign()
		a.Receive(r.messages("1", "2", "3"))
		r.wants("acked", &r.acked, "1")
		r.wants("rejected", &r.settled, "3")
		time.Sleep(time.Minute)
		r.wants("acked", &r.acked, "1", "2")
		r.wants("batches", &r.began, "1+2+3", "2")
		r.ends(a)
	})
}

// A poison message in a batch, however that fails, costs the others nothing: no attempt, no second effect of what
// counts as one.
func TestBatches_ThatFailAsAWhole(t *testing.T) {
	for name, fail := range map[string]func() []error{
		"panic":     func() []error { panic("of row 17") },
		"one error": func() []error { return []error{errFailed} },
		"no return": func() []error { runtime.Goexit(); return nil },
		"too many":  func() []error { return make([]error, 99) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				r := newRig(t)
				attempts := map[string][]int{}
				r.batches(64, Batches{}, func(ctx context.Context, ids []string) []error {
					r.mu.Lock()
					for i, run := range oncemill.RunsFromContext(ctx) {
						attempts[ids[i]] = append(attempts[ids[i]], run.Attempt)
					}
					r.mu.Unlock()
					switch {
					case len(ids) > 1:
						return fail()
					case ids[0] == "17":
						return []error{oncemill.Permanent(errFailed)}
					}
					return nil
				})
				a := r.assign()
				ids := numbered(64)
				a.Receive(r.messages(ids...))
				r.wants("rejected", &r.settled, "17")
				r.wants("acked", &r.acked, slices.Delete(numbered(64), 17, 18)...)
				if want := strings.Join(ids, "+"); r.began[0] != want {
					t.Errorf("the first batch is %s, want all", r.began[0])
				}
				for id, n := range attempts {
					if !slices.Equal(n, []int{1, 1}) { // in the batch that failed, and alone
						t.Errorf("%s ran as attempts %v, want twice as the first", id, n)
					}
				}
				r.ends(a)
			})
		})
	}
}

// claimed has others claim a message, each for so long.
func (r *rig) claimed(id string, lease time.Duration, owners ...string) (last dedupstore.Answer) {
	r.t.Helper()
	for _, owner := range owners {
		var err error
		last, err = dedupstore.ClaimOne(r.t.Context(), r.store, dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "billing", Handler: "insert", ID: id},
			Owner: owner, Lease: lease, Retention: time.Hour, MaxAttempts: 5,
		})
		if err != nil || last.Status != dedupstore.AcquiredRun {
			r.t.Fatalf("%+v, %v", last, err)
		}
		if lease < time.Second {
			time.Sleep(2 * lease)
		}
	}
	return last
}

// A message whose last two runs ended with their processes could end this one, too, and spend the attempts of others.
func TestBatches_MessageWhoseLastRunsCrashedRunsAlone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(8, Batches{}, succeed)
		r.claimed("2", 10*time.Millisecond, "dead-process-0001", "dead-process-0002")
		a := r.assign()
		a.Receive(r.messages("1", "2", "3"))
		r.wants("batches", &r.began, "1+3", "2")
		r.ends(a)
	})
}

// A message that waits for a busy key holds up nobody else.
func TestBatches_ABusyMessageHoldsUpNone(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(8, Batches{}, succeed)
		busy := r.claimed("2", time.Minute, "another-owner-01")
		a := r.assign()
		a.Receive(r.messages("1", "2", "3"))
		r.wants("batches", &r.began, "1+3")
		if err := dedupstore.SettleOne(t.Context(), r.store, busy.Claim, dedupstore.Release{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.wants("acked", &r.acked, "1", "2", "3")
		r.ends(a)
	})
}

func TestBatches_HaveAtMostOneOfAKey(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.batches(8, Batches{}, succeed)
		a := r.assign()
		a.Receive(r.messages("a1", "a2", "b1", "b2", "1"))
		r.wants("batches", &r.began, "a1+b1+1", "a2+b2")
		r.ends(a)
	})
}

func TestBatches_Problem(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]Batches{
		"MaxBatch is -1": {Most: -1}, "MaxBatchBytes is -1": {Bytes: -1}, "Linger is -1ns": {Linger: -1},
	} {
		if got := b.WithDefaults().Problem(); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, b := range []Batches{{}, Batches{}.WithDefaults()} {
		if got := b.Problem(); got != "" {
			t.Errorf("%+v: %q", b, got)
		}
	}
	if b := (Batches{}.WithDefaults()); b.Most != 64 || b.Bytes != 1<<20 {
		t.Errorf("the defaults are %+v", b)
	}
}
