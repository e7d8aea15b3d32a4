package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/consumertest"
)

var virtual = consumertest.Virtual

// There are never more handlers than slots, and slots are given in the order in which messages came, over all
// assignments.
func TestLoop_SlotsAreGivenInOrder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(2, g.wait)
		one, other := r.assign(), r.assign()
		one.Receive(r.messages("1", "2", "3"))
		other.Receive(r.messages("4", "5"))
		one.Receive(r.messages("6"))
		r.wants("began", &r.began, "1", "2")
		g.open("1")
		r.wants("began", &r.began, "1", "2", "3")
		g.open("2")
		r.wants("began", &r.began, "1", "2", "3", "4")
		g.open("3", "4", "5", "6")
		r.wants("began", &r.began, "1", "2", "3", "4", "5", "6")
		r.ends(one)
		r.ends(other)
		if r.most != 2 || len(r.acked) != 6 || r.left != 6 {
			t.Errorf("%d at once, %d acked, %d left, want 2, 6 and 6", r.most, len(r.acked), r.left)
		}
	})
}

// A message that waits for its next try leaves its slot to others, and comes not before it is due.
func TestLoop_WhatWaitsHasNoSlot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		var tries []time.Duration
		began := time.Now()
		r.each(1, func(ctx context.Context, id string) error {
			if id == "1" {
				if tries = append(tries, time.Since(began)); len(tries) < 3 {
					return oncemill.RetryAfter(lookAgain+30*time.Second, errFailed)
				}
				if n := oncemill.FromContext(ctx).Attempt; n != 3 {
					t.Errorf("attempt %d, want 3", n)
				}
			}
			return nil
		})
		a := r.assign()
		a.Receive(r.messages("1", "2"))
		r.wants("acked", &r.acked, "2")
		time.Sleep(time.Hour)
		r.wants("acked", &r.acked, "2", "1")
		const delay = lookAgain + 30*time.Second
		if len(tries) != 3 || tries[1] < delay || tries[2] < tries[1]+delay || tries[2] > 3*delay {
			t.Errorf("tries after %v, want two more, each after its delay", tries)
		}
		r.ends(a)
	})
}

// A message waits for its whole delay, whatever the store says of it.
func TestLoop_RetryComesNotBeforeItsDelay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		var tries []time.Duration
		began := time.Now()
		r.loop = New(Work{Source: func(_ context.Context, d consumer.Delivery, done func(consumer.Decision)) {
			if tries = append(tries, time.Since(began)); len(tries) == 1 {
				done(consumer.Decision{Action: consumer.RetryLater, Delay: 5*lookAgain + time.Second})
				return
			}
			if d.Count != 2 {
				t.Errorf("delivery %d, want the second", d.Count)
			}
			done(consumer.Decision{Action: consumer.Ack})
		}}, 1)
		a := r.assign()
		a.Receive(r.messages("1"))
		time.Sleep(time.Hour)
		r.wants("acked", &r.acked, "1")
		if len(tries) != 2 || tries[1] != 5*lookAgain+time.Second {
			t.Errorf("tries after %v", tries)
		}
		r.ends(a)
	})
}

// What is due later takes no slot until then.
func TestLoop_WhatIsNotDueHasNoSlot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(1, func(context.Context, string) error { return nil })
		a := r.assign()
		messages := r.messages("1", "2")
		due := time.Now().Add(5*lookAgain + time.Second)
		fakeOf(messages[0].Message).due = due
		a.Receive(messages)
		r.wants("acked", &r.acked, "2")
		time.Sleep(time.Until(due) - time.Millisecond)
		r.wants("acked", &r.acked, "2")
		time.Sleep(time.Millisecond)
		r.wants("acked", &r.acked, "2", "1")
		r.ends(a)
	})
}

// The clock of a process may have been far behind when a message began to wait, and be set right meanwhile.
func TestLoop_ClockThatIsSetEndsTheWait(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(1, func(context.Context, string) error { return nil })
		began := time.Now()
		r.loop.until = func(time.Time) time.Duration {
			if time.Since(began) > lookAgain*3/2 {
				return 0
			}
			return 10 * 365 * 24 * time.Hour
		}
		a := r.assign()
		messages := r.messages("1")
		fakeOf(messages[0].Message).due = began.Add(time.Hour)
		a.Receive(messages)
		time.Sleep(lookAgain)
		r.wants("acked", &r.acked)
		time.Sleep(lookAgain)
		r.wants("acked", &r.acked, "1")
		r.ends(a)
	})
}

// Messages of a key run one after the other, through failures, and hold up no others.
func TestLoop_KeepsTheOrderOfKeys(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		failed := map[string]bool{}
		var mu sync.Mutex
		r.each(4, func(_ context.Context, id string) error {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasSuffix(id, "1") && !failed[id] {
				failed[id] = true
				return errFailed
			}
			return nil
		})
		a := r.assign()
		a.Receive(r.messages("a1", "a2", "b1", "a3", "7", "b2"))
		r.wants("acked", &r.acked, "7")
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, want := range [][]string{{"a1", "a2", "a3"}, {"b1", "b2"}} {
			got := slices.DeleteFunc(slices.Clone(r.acked), func(id string) bool { return !slices.Contains(want, id) })
			if !slices.Equal(got, want) {
				t.Errorf("acked %v, want %v", got, want)
			}
		}
		a.Receive(r.messages("a4"))
		r.wants("acked", &r.acked, "a1", "a2", "a3", "a4", "b1", "b2", "7")
		r.ends(a)
	})
}

func TestLoop_PanicIsAFailedAttempt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		tries := 0
		r.each(1, func(context.Context, string) error {
			if tries++; tries == 1 {
				panic("of the handler")
			}
			return nil
		})
		a := r.assign()
		a.Receive(r.messages("a1", "a2"))
		time.Sleep(time.Minute)
		r.wants("acked", &r.acked, "a1", "a2")
		r.ends(a)
	})
}

// A handler that ends its goroutine, as assertions of tests do, takes nothing along.
func TestLoop_HandlerThatEndsItsGoroutineLosesNothing(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(1, func(context.Context, string) error {
			runtime.Goexit()
			return nil
		})
		a := r.assign()
		a.Receive(r.messages("1"))
		r.wants("settled", &r.settled, "1") // the transport leaves it to come again
		r.ends(a)
	})
}

// A handler of a Source that answers at once does not nest in the one before it.
func TestLoop_AnswersAtOnceDoNotNest(t *testing.T) {
	for _, answer := range []consumer.Action{consumer.Ack, consumer.Reject} {
		t.Run(string(answer), func(t *testing.T) { answersAtOnce(t, answer) })
	}
}

func answersAtOnce(t *testing.T, answer consumer.Action) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		deepest := 0
		r.loop = New(Work{Source: func(_ context.Context, _ consumer.Delivery, done func(consumer.Decision)) {
			deepest = max(deepest, runtime.Callers(0, make([]uintptr, 1000)))
			done(consumer.Decision{Action: answer})
		}}, 1)
		a := r.loop.Assign(t.Context(), nil, 500, r.leave)
		a.Receive(r.messages(numbered(500)...))
		ended := map[consumer.Action]*[]string{consumer.Ack: &r.acked, consumer.Reject: &r.settled}
		r.wants(string(answer), ended[answer], numbered(500)...)
		if deepest > 50 {
			t.Errorf("a stack of %d frames, want a few", deepest)
		}
		r.ends(a)
	})
}

// An assignment takes only as many messages as it has room for; those that wait for their next try take room, too.
func TestAssignment_Room(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(10, g.wait)
		a := r.loop.Assign(t.Context(), nil, 2, r.leave)
		a.Receive(r.messages("1", "2", "3", "4"))
		r.wants("began", &r.began, "1", "2")
		if a.Queued() != 2 || len(a.InFlight()) != 2 || fakeOf(a.InFlight()[1]).id != "2" {
			t.Errorf("%d queued, in flight %v, want 2, and 1 and 2", a.Queued(), a.InFlight())
		}
		g.of("1") <- errFailed
		r.wants("began", &r.began, "1", "2")
		g.open("2")
		r.wants("began", &r.began, "1", "2", "3")
		g.open("1", "3", "4")
		time.Sleep(time.Minute)
		r.wants("acked", &r.acked, "2", "3", "4", "1")
		r.ends(a)
	})
}

// A halt lets handlers go on, and starts nothing. What waits is given back: at once, when its key's turn comes, or, if
// it waited for its next try, not before that is due.
func TestAssignment_HaltGivesBack(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(3, g.wait)
		a := r.assign()
		a.Receive(r.returnable("a1", "a2", "b1", "a3", "1", "2"))
		g.of("1") <- errFailed
		r.wants("began", &r.began, "a1", "b1", "1", "2")
		a.Receive(r.returnable("3"))
		a.Halt()
		r.wants("given back", &r.back, "1", "3")
		if left := time.Until(r.dues["1"]); left < 500*time.Millisecond || left > time.Second {
			t.Errorf("what waited for its next try is due in %v, want the rest of a second", left)
		}
		if !r.dues["3"].IsZero() {
			t.Error("what has not begun is given back with a delay")
		}
		a.Receive(r.returnable("4"))
		r.wants("given back", &r.back, "1", "3", "4")
		if closed(a.Ended()) {
			t.Error("it has ended although handlers run")
		}
		g.open("a1", "2")
		g.of("b1") <- errFailed
		time.Sleep(time.Minute)
		r.wants("acked", &r.acked, "a1", "2")
		r.wants("given back", &r.back, "1", "3", "4", "a2", "a3", "b1")
		if slices.Index(r.back, "a2") > slices.Index(r.back, "a3") {
			t.Errorf("given back in the order %v", r.back)
		}
		r.ends(a)
		if r.left != 8 || len(a.InFlight()) != 0 {
			t.Errorf("%d left, %d in flight, want all and none", r.left, len(a.InFlight()))
		}
	})
}

// What cannot be given back is dropped, and an assignment does not wait for what others hold up.
func TestAssignment_HaltDrops(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(1, g.wait)
		halted, other := r.loop.Assign(t.Context(), nil, 3, r.leave), r.assign()
		halted.Receive(r.messages("1", "a1", "a2", "2"))
		g.of("1") <- errFailed // it waits; a1 has the slot
		synctest.Wait()
		other.Receive(r.messages("3"))
		g.of("a1") <- errFailed // so does that; 3 has the slot, and nobody of the halted one runs
		synctest.Wait()
		halted.Receive(r.messages("4"))
		halted.Halt()
		if n := halted.Queued(); n > 0 {
			t.Errorf("%d messages are queued, and nobody takes them", n)
		}
		synctest.Wait()
		if !closed(halted.Ended()) {
			t.Fatal("it has not ended, although nothing of it runs")
		}
		halted.Receive(r.messages("5", "6", "7"))
		if n := halted.Queued(); n > 0 {
			t.Errorf("%d messages are queued, and nobody takes them", n)
		}
		g.open("3")
		time.Sleep(time.Hour)
		r.wants("began", &r.began, "1", "a1", "3")
		r.wants("acked", &r.acked, "3")
		r.ends(other)
	})
}

// A message on its last delivery is not given back: it runs, or waits for its next try, until the grace ends.
func TestAssignment_LastDeliveryRunsInTheDrain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(2, g.wait)
		a := r.assign()
		messages := r.returnable("a1", "a2", "a3", "1", "b1")
		for _, i := range []int{1, 3, 4} {
			messages[i].Last = true
		}
		a.Receive(messages)
		g.of("1") <- errFailed // it waits
		synctest.Wait()
		a.Halt()
		time.Sleep(10 * time.Second)
		g.open("a1", "a2", "1")
		time.Sleep(10 * time.Second)
		r.wants("acked", &r.acked, "a1", "1", "a2")
		r.wants("given back", &r.back, "a3")
		if late := Late([]*Assignment{a}, time.Second); len(late) != 1 {
			t.Fatal("it has ended, although b1 runs")
		}
		if n := a.Cancel(errFailed); n != 1 {
			t.Errorf("%d handlers were cancelled, want one", n)
		}
		r.ends(a)
		r.wants("given back", &r.back, "a3", "b1")
	})
}

// The grace ends the wait of what may still start then, and the contexts of handlers, with its cause.
func TestAssignment_Cancel(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		cause := make(chan error, 2)
		r.each(2, func(ctx context.Context, id string) error {
			if id == "2" {
				return errFailed
			}
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		})
		a := r.assign()
		messages := r.returnable("1", "2")
		messages[1].Last = true
		a.Receive(messages)
		synctest.Wait()
		a.Halt()
		late := Late([]*Assignment{a}, 100*time.Millisecond)
		if len(late) != 1 || late[0] != a {
			t.Fatal("it has ended")
		}
		errGrace := errors.New("the grace is over")
		if n := a.Cancel(errGrace); n != 1 {
			t.Errorf("%d handlers ran, want one", n)
		}
		r.wants("given back", &r.back, "1", "2")
		if err := <-cause; !errors.Is(err, errGrace) {
			t.Errorf("cause %v", err)
		}
		r.ends(a)
		r.wants("given back", &r.back, "1", "2")
	})
}

// A late store answers when it is let.
type late struct {
	dedupstore.Store
	asked, answer chan struct{}
}

func (l *late) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	close(l.asked)
	<-l.answer
	return l.Store.Claim(ctx, requests)
}

// A claim that is granted after the halt is given back, and counts as no attempt: another member runs the message at
// once.
func TestAssignment_ClaimGrantedAfterTheHaltIsGivenBack(t *testing.T) {
	for name, batches := range map[string]bool{"each": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				r := newRig(t)
				store := consumertest.NewStore(t)
				slow := &late{store, make(chan struct{}), make(chan struct{})}
				policy := oncemill.Policy{MaxAttempts: 1}
				once := consumertest.NewProcessor(t, slow, consumer.Config{Policy: policy})
				work := Work{Handler: "charge", Once: once}
				if batches {
					work.Batches = Batches{}.WithDefaults()
					work.Batch = func(context.Context, []Message) []error { t.Error("the batch runs"); return nil }
				} else {
					work.Each = func(context.Context, Message) error { t.Error("the handler runs"); return nil }
				}
				r.loop = New(work, 2)
				r.retries = func(m *fake, _ consumer.Decision) (time.Time, bool) { return time.Time{}, true }
				a := r.assign()
				a.Receive(r.returnable("1", "2"))
				<-slow.asked
				a.Halt()
				close(slow.answer)
				r.ends(a)
				r.wants("given back", &r.back, "1", "2")

				other := newRig(t)
				ran := make(chan string, 2)
				other.loop = New(Work{
					Handler: "charge", Once: consumertest.NewProcessor(t, store, consumer.Config{Policy: policy}),
					Each: func(_ context.Context, m Message) error { ran <- fakeOf(m).id; return nil },
				}, 2)
				b := other.assign()
				b.Receive(other.returnable("1", "2"))
				synctest.Wait()
				if len(ran) != 2 {
					t.Errorf("%d run at once elsewhere, want both", len(ran))
				}
				other.ends(b)
			})
		})
	}
}

// Another assignment of the same partition starts nothing before the earlier one has ended, and does not end before it.
func TestAssignment_WaitsForTheEarlierOne(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(10, g.wait)
		first := r.loop.Assign(t.Context(), nil, 1, r.leave)
		first.Receive(r.messages("1", "2"))
		synctest.Wait()
		first.Halt()
		second := r.loop.Assign(t.Context(), first, 1, r.leave)
		second.Receive(r.messages("3", "4"))
		time.Sleep(time.Hour)
		r.wants("began", &r.began, "1")
		g.open("1", "3", "4")
		r.wants("began", &r.began, "1", "3", "4")
		r.ends(second)

		third := r.loop.Assign(t.Context(), second, 1, r.leave)
		third.Receive(r.messages("5"))
		synctest.Wait()
		third.Halt()
		fourth := r.loop.Assign(t.Context(), third, 1, r.leave)
		fourth.Receive(r.messages("6"))
		fourth.Halt()
		synctest.Wait()
		if closed(fourth.Ended()) {
			t.Error("it has ended, although the one before it has not")
		}
		g.open("5")
		r.ends(fourth)
		r.wants("began", &r.began, "1", "3", "4", "5")
	})
}

func TestAssignment_HoldKeepsItFromEnding(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(1, func(context.Context, string) error { return nil })
		a := r.assign()
		a.Hold()
		if a.IsHalted() {
			t.Error("it is halted")
		}
		a.Halt()
		if !a.IsHalted() || a.HasEnded() {
			t.Error("it is not halted, or has ended")
		}
		a.Receive(r.returnable("1"))
		r.wants("given back", &r.back, "1")
		if closed(a.Ended()) {
			t.Error("it has ended")
		}
		next := r.loop.Assign(t.Context(), a, 1, r.leave)
		next.Receive(r.messages("2"))
		r.wants("acked", &r.acked)
		a.Release()
		r.wants("acked", &r.acked, "2")
		if !a.HasEnded() {
			t.Error("it has not ended")
		}
		r.ends(a)
		r.ends(next)
	})
}

// What waits for an earlier assignment starts as soon as that has ended, whatever ends it.
func TestAssignment_StartsWhenTheEarlierOneHasEnded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(2, func(_ context.Context, id string) error {
			if id == "1" {
				return errFailed
			}
			return nil
		})
		first := r.assign()
		second := r.loop.Assign(t.Context(), first, 1, r.leave)
		second.Receive(r.messages("2"))
		r.wants("acked", &r.acked)
		first.Halt()
		r.wants("acked", &r.acked, "2")
		r.ends(second)

		third := r.assign()
		messages := r.messages("1")
		messages[0].Last = true // it waits for its next try until the grace ends
		third.Receive(messages)
		synctest.Wait()
		third.Halt()
		fourth := r.loop.Assign(t.Context(), third, 1, r.leave)
		fourth.Receive(r.messages("4"))
		third.Cancel(errFailed)
		r.wants("acked", &r.acked, "2", "4")
		r.ends(third)
		r.ends(fourth)
	})
}

// What waits for its next try is given back once, although the grace ends after the halt.
func TestAssignment_CancelGivesNothingBackTwice(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(2, g.wait)
		a := r.assign()
		a.Receive(r.returnable("1", "2"))
		g.of("1") <- errFailed
		synctest.Wait()
		a.Halt()
		a.Cancel(errFailed)
		r.wants("given back", &r.back, "1", "2")
		r.ends(a)
	})
}

// A message on its last delivery that has no slot yet at the halt gets one.
func TestAssignment_LastDeliveryWaitsForASlotInTheDrain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(1, g.wait)
		a := r.assign()
		messages := r.returnable("1", "2", "3")
		messages[1].Last = true
		a.Receive(messages)
		synctest.Wait()
		a.Halt()
		r.wants("given back", &r.back, "3")
		g.open("1", "2")
		r.wants("acked", &r.acked, "1", "2")
		r.ends(a)
	})
}

// A halt while the loop starts messages finds them, too.
func TestAssignment_HaltWhileMessagesStart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(2, func(context.Context, string) error { return nil })
		a := r.assign()
		messages := r.returnable("1", "2")
		fakeOf(messages[0].Message).starts = a.Halt
		a.Receive(messages)
		r.wants("given back", &r.back, "1", "2")
		r.wants("began", &r.began)
		r.ends(a)
	})
}

// A message that ran before does not start again either.
func TestAssignment_HaltWhileAMessageStartsAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.each(1, func(context.Context, string) error { return errFailed })
		a := r.assign()
		messages := r.returnable("1")
		starts := 0
		fakeOf(messages[0].Message).starts = func() {
			if starts++; starts == 2 {
				a.Halt()
			}
		}
		a.Receive(messages)
		time.Sleep(time.Minute)
		r.wants("began", &r.began, "1")
		r.wants("given back", &r.back, "1")
		r.ends(a)
	})
}

// A repeating inbox has each transaction refused once, because of others.
type repeating struct{ *storetest.MemoryInbox }

func (i repeating) InTx(
	ctx context.Context, runs []dedupstore.TxRun, work dedupstore.TxWork,
) ([]dedupstore.Answer, error) {
	return i.MemoryInbox.InTx(ctx, runs, func(ctx context.Context, claims []dedupstore.Claim) ([]dedupstore.Settlement, error) {
		if _, err := work(ctx, claims); err != nil {
			return nil, err
		}
		return work(ctx, claims)
	})
}

// A handler that has begun before the halt is called again when its transaction has to be repeated.
func TestAssignment_HaltLetsTransactionsBeRepeated(t *testing.T) {
	for name, batches := range map[string]bool{"each": false, "batch": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				r := newRig(t)
				inbox := repeating{storetest.NewMemoryInbox(consumertest.NewStore(t))}
				work := Work{Handler: "charge", Once: consumertest.NewProcessor(t, inbox, consumer.Config{})}
				calls := 0
				var a *Assignment
				handle := func(of int) {
					if calls += of; calls == 2 {
						a.Halt()
					}
				}
				if batches {
					work.Batches = Batches{}.WithDefaults()
					work.Batch = func(_ context.Context, ms []Message) []error { handle(len(ms)); return nil }
				} else {
					work.Each = func(context.Context, Message) error { handle(2); return nil }
				}
				r.loop = New(work, 2)
				a = r.assign()
				a.Receive(r.returnable("1", "2")[:map[bool]int{true: 2, false: 1}[batches]])
				synctest.Wait()
				r.ends(a)
				if len(r.back) > 0 || calls != 4 {
					t.Errorf("%d calls, %v acked, %v given back; want 4 calls", calls, r.acked, r.back)
				}
			})
		})
	}
}

// Messages of several assignments that start together have the contexts of their own ones.
func TestLoop_EachHasTheContextOfItsAssignment(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		r.each(10, g.wait)
		one, other := r.assign(), r.assign()
		first := r.returnable("1")
		fakeOf(first[0].Message).starts = func() { // the loop starts what comes now together, afterwards
			one.Receive(r.returnable("2", "3"))
			other.Receive(r.returnable("4", "5"))
		}
		one.Receive(first)
		r.wants("began", &r.began, "1", "2", "3", "4", "5")
		one.Halt()
		one.Cancel(errFailed)
		r.wants("given back", &r.back, "1", "2", "3")
		time.Sleep(time.Minute)
		r.wants("began", &r.began, "1", "2", "3", "4", "5")
		g.open("4", "5")
		r.wants("acked", &r.acked, "4", "5")
		r.ends(one)
		r.ends(other)
	})
}

// A decision that takes long to carry out has no slot.
func TestLoop_DecisionHasNoSlot(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		carried := make(chan struct{})
		r.retries = func(*fake, consumer.Decision) (time.Time, bool) { <-carried; return time.Time{}, false }
		r.each(1, func(_ context.Context, id string) error {
			if id == "1" {
				return errFailed
			}
			return nil
		})
		a := r.assign()
		a.Receive(r.messages("1", "2"))
		r.wants("acked", &r.acked, "2")
		close(carried)
		r.ends(a)
	})
}

// At most half of the slots wait for keys that others hold.
func TestLoop_HalfOfTheSlotsWaitForOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r, g := newRig(t), &gates{}
		var turnedAway atomic.Int32
		r.retries = func(*fake, consumer.Decision) (time.Time, bool) {
			turnedAway.Add(1)
			return time.Time{}, false
		}
		r.each(8, g.wait)
		holder, a := r.assign(), r.assign()
		holder.Receive(r.messages(numbered(6)...))
		synctest.Wait()
		r.loop.free += 6 // the holders might be elsewhere
		a.Receive(r.messages(numbered(6)...))
		synctest.Wait()
		if got := turnedAway.Load(); got != 2 {
			t.Errorf("turned away: %d of six, want two", got)
		}
		g.open(numbered(6)...)
		r.ends(a)
		r.ends(holder)
	})
}

// Wait waits for what is given back, too.
// The outcomes of messages are stored while the connection to the broker stands still.
func TestLoop_AnAckThatWaitsKeepsNoOutcomeFromTheStore(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		r.stuck = make(chan struct{})
		r.each(8, func(context.Context, string) error { return nil })
		a := r.assign()
		for _, id := range []string{"1", "2", "3", "4"} {
			a.Receive(r.messages(id))
			time.Sleep(10 * time.Second)
			seen, err := r.store.(dedupstore.Inspector).Look(t.Context(), []dedupstore.Key{
				{Tenant: "default", Group: "billing", Handler: "charge", ID: id}})
			if err != nil || seen[0].State != dedupstore.Finished {
				t.Errorf("%s: %+v, %v, want its outcome stored", id, seen, err)
			}
		}
		r.wants("acked", &r.acked)
		close(r.stuck)
		r.wants("acked", &r.acked, "1", "2", "3", "4")
		r.ends(a)
	})
}

func TestLoop_WaitWaitsForItsGoroutines(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRig(t)
		carried, waited := make(chan struct{}), make(chan struct{})
		r.retries = func(*fake, consumer.Decision) (time.Time, bool) { <-carried; return time.Time{}, false }
		r.each(1, func(context.Context, string) error { return errFailed })
		a := r.assign()
		a.Receive(r.messages("1"))
		synctest.Wait()
		go func() {
			r.loop.Wait()
			close(waited)
		}()
		synctest.Wait()
		if closed(waited) {
			t.Error("a decision is being carried out, and it does not wait")
		}
		close(carried)
		<-waited
		r.ends(a)
	})
}

// Whatever comes when: each message is settled once, given back or dropped, nothing starts after a halt, the order of
// keys is kept, and all ends.
func TestLoop_Storm(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			virtual(t, func(t *testing.T) { storm(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func storm(t *testing.T, chance *rand.Rand) {
	var mu sync.Mutex
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return chance.IntN(n)
	}
	r := newRig(t)
	halted := map[byte]time.Time{} // by the name of an assignment
	returnable := map[string]bool{}
	var running [4]map[byte]int // by partition, and by that
	r.each(1+draw(5), func(_ context.Context, id string) error {
		mu.Lock()
		if at, is := halted[id[1]]; is && time.Now().After(at) {
			t.Errorf("%s starts after the halt", id)
		}
		of := running[int(id[1]-'A')/3]
		if of[id[1]]++; len(of) > 1 {
			t.Errorf("%s starts while an earlier assignment goes on: %v", id, of)
		}
		mu.Unlock()
		time.Sleep(time.Duration(draw(50)) * time.Millisecond)
		mu.Lock()
		if of[id[1]]--; of[id[1]] == 0 {
			delete(of, id[1])
		}
		mu.Unlock()
		if draw(4) == 0 {
			return oncemill.RetryAfter(time.Duration(draw(50))*time.Millisecond, errFailed)
		}
		return nil
	})
	for p := range running {
		running[p] = map[byte]int{}
	}
	var partitions sync.WaitGroup
	for p := range 4 {
		partitions.Go(func() {
			var before *Assignment
			for generation := range 3 {
				a := r.loop.Assign(context.Background(), before, 1+draw(20), r.leave)
				name := byte('A' + 3*p + generation)
				for n := 0; n < 40; {
					var ids []string
					for range 1 + draw(10) {
						ids = append(ids, fmt.Sprintf("%c%c%03d", "1abc"[draw(4)], name, n))
						n++
					}
					if p%2 == 0 {
						mu.Lock()
						for _, id := range ids {
							returnable[id] = true
						}
						mu.Unlock()
						a.Receive(r.returnable(ids...))
					} else {
						a.Receive(r.messages(ids...))
					}
					time.Sleep(time.Duration(draw(30)) * time.Millisecond)
				}
				a.Halt()
				mu.Lock()
				halted[name] = time.Now()
				mu.Unlock()
				before = a
			}
			if len(Late([]*Assignment{before}, time.Hour)) > 0 {
				t.Error("a partition does not end")
			}
		})
	}
	partitions.Wait()
	r.loop.Wait()
	seen := map[string]bool{}
	last := map[string]string{}
	for _, id := range slices.Concat(r.acked, r.settled, r.back) {
		if seen[id] {
			t.Errorf("%s is settled or given back twice", id)
		}
		seen[id] = true
		delete(returnable, id)
	}
	for id := range returnable {
		t.Errorf("%s is neither settled nor given back", id)
	}
	for _, id := range r.acked {
		key := id[:2]
		if keyOf(id) != "" && id < last[key] {
			t.Errorf("%s is settled after %s", id, last[key])
		}
		last[key] = id
	}
	if len(r.acked) == 0 || r.running != 0 {
		t.Errorf("%d acked, %d still run", len(r.acked), r.running)
	}
}

// What is settled is forgotten, although a neighbour that came with it runs for long.
func TestLoop_SettledNeighboursAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var g gates
		r.each(4, func(ctx context.Context, id string) error {
			if id == "1" {
				return g.wait(ctx, id)
			}
			return nil
		})
		r.forgets(&g)
	})
}

// A batch also forgets what is settled while the dead letter of a neighbour takes long.
func TestBatches_SettledNeighboursAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var g gates
		r.dead = func(ctx context.Context) error { return g.wait(ctx, "1") }
		r.batches(4, Batches{Most: 3}, func(context.Context, []string) []error {
			return []error{oncemill.Permanent(errors.New("no")), nil, nil}
		})
		r.forgets(&g)
	})
}

// forgets receives three messages. The first waits at a gate, and meanwhile the second has to be forgotten.
func (r *rig) forgets(g *gates) {
	r.t.Helper()
	a := r.assign()
	all := r.messages("1", "2", "3")
	payload := make([]byte, 1<<20)
	payload[0] = 1
	seen := weak.Make(&payload[0])
	all[1].Message.(*fake).payload = payload
	a.Receive(all)
	payload, all = nil, nil
	r.wants("acked", &r.acked, "2", "3")
	for range 5 {
		runtime.GC()
		synctest.Wait()
	}
	if seen.Value() != nil {
		r.t.Error("the payload of a settled message is kept")
	}
	g.open("1")
	r.ends(a)
}
