package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestRelay_SaysWhenItBeginsAndEnds(t *testing.T) {
	virtual(t, func(t *testing.T) {
		var log journal
		start(t, newRelay(t, new(fakeStore), &broker{}, outbox.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}))()
		for _, says := range []string{"relay begins", "relay has ended"} {
			if n := strings.Count(log.String(), `level=INFO msg="outbox: `+says+`" table=outbox system=unknown`); n != 1 {
				t.Errorf("%d lines %q:\n%s", n, says, log.String())
			}
		}
	})
}

func TestRelay_PublishesEachRowOnceAndKeepsIt(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write("a", "b", "c"), &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 2}))
		after(t, time.Minute)
		stop()
		if got := [][]string{b.calls[0].ids, b.calls[1].ids}; !reflect.DeepEqual(got, [][]string{{"a", "b"}, {"c"}}) || len(b.calls) != 2 {
			t.Errorf("%d calls, want a batch of two and one of one: %v", len(b.calls), got)
		}
		for _, id := range []string{"a", "b", "c"} {
			if r := s.row(t, id); r.state != "published" || r.token != "" {
				t.Errorf("row %s is %s, leased by %q", id, r.state, r.token)
			}
		}
	})
}

func TestRelay_SeveralOnOneStorePublishEachRowOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		b := &broker{answer: func(ctx context.Context, _ []producer.Message) error {
			<-time.After(50 * time.Millisecond)
			return nil
		}}
		var stops []func()
		for range 4 {
			stops = append(stops, start(t, newRelay(t, s, b, outbox.Config{BatchSize: 3})))
		}
		for i := range 100 {
			s.write(fmt.Sprint(i))
			after(t, 7*time.Millisecond)
		}
		after(t, time.Minute)
		for _, stop := range stops {
			stop()
		}
		n := b.attempts()
		for i := range 100 {
			if id := fmt.Sprint(i); n[id] != 1 {
				t.Errorf("row %s was published %d times, want once", id, n[id])
			}
		}
	})
}

func TestRelay_RefusedRowWaitsEverLonger(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write("bad"), &broker{answer: refuse(false, "bad")}
		begin := time.Now()
		stop := start(t, newRelay(t, s, b, outbox.Config{PollInterval: 10 * time.Millisecond, Backoff: oncemill.Backoff{Min: time.Second, Max: 5 * time.Second}}))
		after(t, 30*time.Second)
		stop()
		at := b.times("bad", begin)
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			if gap := at[i+1] - at[i]; gap < want*4/5 || gap > want+20*time.Millisecond {
				t.Errorf("pause %d was %v, want %v less at most a fifth", i+1, gap, want)
			}
		}
		if r := s.row(t, "bad"); r.text != "no room for bad" || r.Failures != len(at) {
			t.Errorf("row has %d failures and error %q after %d attempts", r.Failures, r.text, len(at))
		}
	})
}

func TestRelay_PoisonRowDiesAndBlocksNobody(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write("bad", "good"), &broker{answer: refuse(false, "bad")}
		begin := time.Now()
		stop := start(t, newRelay(t, s, b, outbox.Config{MaxAttempts: 3, BatchSize: 1}))
		after(t, time.Second/2)
		s.write("later")
		after(t, time.Hour)
		stop()
		if r := s.row(t, "bad"); r.state != "dead" || r.Failures != 3 || r.text != "no room for bad" || b.attempts()["bad"] != 3 {
			t.Errorf("poison row is %s with %d failures, error %q, %d attempts; want dead after 3", r.state, r.Failures, r.text, b.attempts()["bad"])
		}
		for id, limit := range map[string]time.Duration{"good": time.Second / 2, "later": 3 * time.Second / 2} {
			if at := b.times(id, begin); len(at) != 1 || at[0] > limit {
				t.Errorf("%s was published at %v, want once before %v", id, at, limit)
			}
		}
	})
}

func TestRelay_UnknownNeverKillsARow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s, b := new(fakeStore).write("lost"), &broker{answer: refuse(true, "lost")}
		stop := start(t, newRelay(t, s, b, outbox.Config{MaxAttempts: 2}))
		after(t, 3*time.Hour)
		r := s.row(t, "lost")
		if n := b.attempts()["lost"]; r.state != "pending" || r.Failures != 0 || r.Unknowns != n || n < 3*60-10 || n > 3*60*5/4+10 {
			t.Errorf("row is %s with %d failures and %d unknowns after %d attempts, want pending, tried about once a minute", r.state, r.Failures, r.Unknowns, n)
		}
		b.heal()
		after(t, time.Minute+time.Second)
		stop()
		if r := s.row(t, "lost"); r.state != "published" {
			t.Errorf("row is %s after the broker came back, want published", r.state)
		}
	})
}

func TestRelay_ErrorThatNamesNoMessageIsUnknownForAll(t *testing.T) {
	for name, err := range map[string]error{
		"plain":                  errors.New("connection lost"),
		"no failures":            &producer.PublishError{Failures: []producer.Failure{}},
		"index out of the batch": &producer.PublishError{Failures: []producer.Failure{{Index: 2, Err: errDown}}},
		"failure without error":  &producer.PublishError{Failures: []producer.Failure{{Index: 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				if e, ok := errors.AsType[*producer.PublishError](err); ok && len(e.Failures) == 0 {
					err = noFailures{e}
				}
				s := new(fakeStore).write("a", "b")
				b := &broker{answer: func(context.Context, []producer.Message) error { return err }}
				stop := start(t, newRelay(t, s, b, outbox.Config{MaxAttempts: 1}))
				after(t, time.Second/2)
				stop()
				for _, id := range []string{"a", "b"} {
					if r := s.row(t, id); r.state != "pending" || r.Unknowns != 1 || r.Failures != 0 {
						t.Errorf("row %s is %s with %d unknowns and %d failures, want one unknown", id, r.state, r.Unknowns, r.Failures)
					}
				}
			})
		})
	}
}

// noFailures has a text, which a PublishError without failures cannot make.
type noFailures struct{ error }

func (noFailures) Error() string   { return "nothing failed" }
func (e noFailures) Unwrap() error { return e.error }

func TestRelay_RowThatFailsWholeCallsTakesOthersAlongOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "poison", "b")
		b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
			if slices.ContainsFunc(messages, func(m producer.Message) bool { return m.ID == "poison" }) {
				return errors.New("connection reset")
			}
			return nil
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 10*time.Minute)
		stop()
		n := b.attempts()
		if n["a"] != 2 || n["b"] != 2 || n["poison"] < 10 {
			t.Errorf("attempts %v, want two of each good row, many of the bad one", n)
		}
		if r := s.row(t, "poison"); r.state != "pending" {
			t.Errorf("poison row is %s, want pending", r.state)
		}
	})
}

func TestRelay_HangingPublishIsUnknownAfterItsTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a")
		b := &broker{answer: func(ctx context.Context, _ []producer.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{PublishTimeout: 5 * time.Second}))
		after(t, 5*time.Second+time.Millisecond)
		if r := s.row(t, "a"); r.Unknowns != 1 || r.token != "" || !strings.Contains(r.text, "deadline") {
			t.Errorf("row has %d unknowns, is leased by %q, error %q", r.Unknowns, r.token, r.text)
		}
		b.heal()
		after(t, time.Minute)
		stop()
		if r := s.row(t, "a"); r.state != "published" {
			t.Errorf("row is %s, want published", r.state)
		}
	})
}

func TestRelay_LongErrorIsCutWithAMark(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a")
		b := &broker{answer: func(context.Context, []producer.Message) error { return errors.New(strings.Repeat("é", 4000)) }}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, time.Second/2)
		stop()
		if text := s.row(t, "a").text; len(text) > 1024 || len(text) < 1000 || !strings.HasSuffix(text, "é… (8000 bytes)") {
			t.Errorf("error of %d bytes ends in %q", len(text), text[max(0, len(text)-40):])
		}
	})
}

func TestRelay_RefusesASecondRun(t *testing.T) {
	virtual(t, func(t *testing.T) {
		r := newRelay(t, new(fakeStore), &broker{}, outbox.Config{})
		stop := start(t, r)
		after(t, time.Second)
		if err := r.Run(t.Context()); err == nil {
			t.Error("a second Run at once returned nil")
		}
		stop()
		start(t, r)() // one after the other is fine
	})
}

func TestRelay_ErrorsBesideAPublishErrorLeaveAllUnknown(t *testing.T) {
	virtual(t, func(t *testing.T) {
		one := &producer.PublishError{Failures: []producer.Failure{{Index: 0, ID: "a", Err: errors.New("too large")}}}
		for name, tc := range map[string]struct {
			err  error
			want string // what becomes of the row that the PublishError does not mention
		}{
			"joined":         {errors.Join(one, errors.New("second broker: connection refused")), "pending"},
			"wrapped beside": {fmt.Errorf("%w; %w", one, errors.New("second broker")), "pending"},
			"wrapped alone":  {fmt.Errorf("first broker: %w", one), "published"},
		} {
			s := new(fakeStore).write("a", "b")
			calls := 0
			b := &broker{answer: func(context.Context, []producer.Message) error {
				if calls++; calls == 1 {
					return tc.err
				}
				return errors.New("nothing more")
			}}
			stop := start(t, newRelay(t, s, b, outbox.Config{}))
			after(t, 100*time.Millisecond)
			stop()
			if r := s.row(t, "b"); r.state != tc.want {
				t.Errorf("%s: row is %s, want %s", name, r.state, tc.want)
			}
		}
	})
}

func TestRelay_PublisherThatPanicsEndsNoRelay(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "poison")
		b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
			if slices.ContainsFunc(messages, func(m producer.Message) bool { return m.ID == "poison" }) {
				panic("boom")
			}
			return nil
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, time.Minute)
		stop()
		if r := s.row(t, "a"); r.state != "published" {
			t.Errorf("row is %s, want published", r.state)
		}
		if r := s.row(t, "poison"); r.state != "pending" || !strings.Contains(r.text, "boom") {
			t.Errorf("poison row is %s with error %q", r.state, r.text)
		}
	})
}

func TestRelay_UnreadableRowIsParkedAloud(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a", "odd")
		var log strings.Builder
		cfg := outbox.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		stop := start(t, newRelay(t, unreadable{s, "odd"}, &broker{}, cfg))
		after(t, time.Second)
		stop()
		if !strings.Contains(log.String(), `level=ERROR msg="outbox: row is dead" id=odd topic=orders failures=1 unknowns=0 error="cannot be read"`) {
			t.Errorf("the log does not tell of the dead row: %s", log.String())
		}
		if a, odd := s.row(t, "a"), s.row(t, "odd"); a.state != "published" || odd.state != "dead" || odd.text != "cannot be read" {
			t.Errorf("rows are %s and %s (%q), want published and dead", a.state, odd.state, odd.text)
		}
	})
}

// unreadable is a store one of whose rows cannot be read.
type unreadable struct {
	*fakeStore
	id string
}

func (u unreadable) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	rows, err := u.fakeStore.Lease(ctx, r)
	for i := range rows {
		if rows[i].Message.ID == u.id {
			rows[i].Problem = "cannot be read"
		}
	}
	return rows, err
}

// Rows of a lane are sent one after the other, and none after one that was not acknowledged.
func TestRelay_LanesKeepTheirOrder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore).write("a1", "a2", "b1", "x1", "a3", "b2", "x2")
		for _, r := range s.rows {
			if orderKey := r.Message.ID[:1]; orderKey != "x" {
				r.OrderKey = orderKey
			}
		}
		refused := 0
		b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
			for i, m := range messages {
				if m.ID == "a2" && refused == 0 {
					refused++
					return &producer.PublishError{Failures: []producer.Failure{{Index: i, ID: m.ID, Err: errors.New("no")}}}
				}
			}
			return nil
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{Backoff: oncemill.Backoff{Min: time.Hour, Max: time.Hour}}))
		synctest.Wait()
		stop()
		var sent [][]string
		for _, c := range b.calls {
			sent = append(sent, c.ids)
		}
		if want := [][]string{{"a1", "b1", "x1", "x2"}, {"a2", "b2"}}; !reflect.DeepEqual(sent[:2], want) {
			t.Errorf("the first calls are %v, want %v", sent[:2], want)
		}
		if got := s.row(t, "a2"); got.Failures != 1 {
			t.Errorf("a2 has %d failures, want 1", got.Failures)
		}
	})
}

// A key with many rows takes a second of a batch. Then others get their turn.
func TestRelay_AHotLaneDoesNotHoldUpOthers(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		for i := range 900 {
			s.write(fmt.Sprint("a", i)).rows[i].OrderKey = "a"
		}
		began, took := time.Now(), time.Duration(0)
		b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
			time.Sleep(10 * time.Millisecond)
			for _, m := range messages {
				if m.ID == "b" {
					took = time.Since(began)
				}
			}
			return nil
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, 500*time.Millisecond)
		s.write("b")
		after(t, time.Minute)
		stop()
		if took == 0 || took > 3*time.Second {
			t.Errorf("the other row was published after %v", took)
		}
		if calls := len(b.calls); calls < 900 {
			t.Errorf("%d calls", calls)
		}
	})
}

// A topic that hangs and gets more rows takes all the time of a batch. The other lanes of the batch do not wait for it
// with each of their rows.
func TestRelay_TopicThatHangsHoldsUpNoOtherLane(t *testing.T) {
	for name, orderKey := range map[string]string{"rows without a lane": "", "lanes of their own": "new "} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				const rows = 40
				s := new(fakeStore)
				for i := range rows {
					s.write(fmt.Sprint("a", i)).rows[i].OrderKey = "a"
				}
				hang := func(i int) {
					s.write(fmt.Sprint("hangs ", i))
					s.mu.Lock()
					defer s.mu.Unlock()
					row := s.rows[len(s.rows)-1]
					row.Message.Topic = "hangs"
					if orderKey != "" {
						row.OrderKey = fmt.Sprint(orderKey, i)
					}
				}
				b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
					var e producer.PublishError
					for i, m := range messages {
						if m.Topic == "hangs" {
							<-ctx.Done()
							e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: ctx.Err(), Unknown: true})
						}
					}
					if e.Failures == nil {
						return nil
					}
					return &e
				}}
				hang(0)
				stop := start(t, newRelay(t, s, b, outbox.Config{}))
				for i := range 100 { // a new one for each batch
					after(t, time.Second)
					hang(i + 1)
				}
				stop()
				var sent []string
				for _, c := range b.calls {
					for _, id := range c.ids {
						if id[0] == 'a' {
							sent = append(sent, id)
						}
					}
				}
				want := make([]string, rows)
				for i := range want {
					want[i] = fmt.Sprint("a", i)
				}
				if !reflect.DeepEqual(sent, want) {
					t.Errorf("rows of a lane that were sent within 100 s: %v, want %v", sent, want)
				}
			})
		})
	}
}

// An outage of the whole broker makes all topics suspicious. One that still hangs holds up the others only until that
// is forgotten.
func TestRelay_TopicThatHangsAfterAnOutageHoldsUpNoOtherLaneForLong(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows = 40
		s := new(fakeStore)
		var up atomic.Bool
		b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
			var e producer.PublishError
			for i, m := range messages {
				if m.Topic == "hangs" || !up.Load() {
					<-ctx.Done()
					e.Failures = append(e.Failures, producer.Failure{Index: i, ID: m.ID, Err: ctx.Err(), Unknown: true})
				}
			}
			if e.Failures == nil {
				return nil
			}
			return &e
		}}
		write := func(id, topic, orderKey string) {
			s.write(id)
			s.mu.Lock()
			defer s.mu.Unlock()
			row := s.rows[len(s.rows)-1]
			row.Message.Topic, row.OrderKey = topic, orderKey
		}
		hang := func(i int) { write(fmt.Sprint("hangs ", i), "hangs", fmt.Sprint("new ", i)) }
		hang(0)
		write("first", "orders", "first")
		stop := start(t, newRelay(t, s, b, outbox.Config{}))
		after(t, time.Minute)
		up.Store(true)
		after(t, time.Minute)
		hang(1)
		for i := range rows {
			write(fmt.Sprint("a", i), "orders", "a")
		}
		for i := range 240 { // a new one for each batch
			after(t, time.Second)
			hang(i + 2)
		}
		stop()
		sent := map[string]bool{}
		for _, c := range b.calls {
			for _, id := range c.ids {
				sent[id] = true
			}
		}
		for i := range rows {
			if id := fmt.Sprint("a", i); !sent[id] {
				t.Fatalf("%s was not sent within 4 min", id)
			}
		}
	})
}

// The next batch overlaps a full batch that flows: it is read and sent while the first waits for its acknowledgements.
func TestRelay_ReadsTheNextBatchWhileAcknowledgementsAreAwaited(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := &fakeStore{}
		for i := range 100 {
			s.write(fmt.Sprint("order ", i))
		}
		var mu sync.Mutex
		var now, most int
		b := &broker{answer: func(context.Context, []producer.Message) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-time.After(time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return nil
		}}
		began := time.Now()
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 10}))
		for s.row(t, "order 99").state != "published" {
			<-time.After(10 * time.Millisecond)
		}
		took := time.Since(began)
		stop()
		if most != 2 {
			t.Errorf("at most %d batches at once, want 2", most)
		}
		if took > 7*time.Second {
			t.Errorf("10 batches of a second took %v", took)
		}
	})
}

// As docs/outbox.md says: two batches share the broker, and less than half of PublishTimeout is enough for each.
func TestRelay_BatchesThatTakeLessThanHalfOfPublishTimeoutAreSentOnce(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		const rows, each = 600, 140 * time.Millisecond // 100 rows take 14 s
		for i := range rows {
			s.write(fmt.Sprint(i))
		}
		var mu sync.Mutex
		var free time.Time // when the broker has taken all that was sent
		b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
			mu.Lock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(time.Duration(len(messages)) * each)
			taken := time.NewTimer(time.Until(free))
			mu.Unlock()
			defer taken.Stop()
			select {
			case <-taken.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 100, PublishTimeout: 30 * time.Second}))
		after(t, 2*time.Minute)
		stop()
		attempts := b.attempts()
		if len(attempts) != rows {
			t.Errorf("%d rows were sent, want %d", len(attempts), rows)
		}
		for id, n := range attempts {
			if n != 1 {
				t.Errorf("row %s was sent %d times, want once", id, n)
			}
		}
	})
}

// A backlog is published by all lanes soon: they do not wait for the acknowledgements of a large batch.
func TestRelay_BeginsWithASmallBatch(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		var mu sync.Mutex
		var sizes []int
		b := &broker{answer: func(_ context.Context, messages []producer.Message) error {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(messages))
			return nil
		}}
		r := newRelay(t, s, b, outbox.Config{BatchSize: 500})
		var stop func()
		for round := range 2 { // also after it has had nothing to do
			sizes = nil
			for i := range 800 {
				s.write(fmt.Sprint(i))
			}
			if round == 0 {
				stop = start(t, r)
			} else {
				r.Wake()
			}
			after(t, time.Minute)
			if len(sizes) < 3 || sizes[0] > 100 || slices.Max(sizes) != 500 {
				t.Errorf("batches of %d rows, want a small one before those of 500", sizes)
			}
		}
		stop()
	})
}

// A row without an answer keeps its batch for PublishTimeout, but not what was written behind the small one that is first.
func TestRelay_SmallBatchThatHangsHoldsUpNoRest(t *testing.T) {
	virtual(t, func(t *testing.T) {
		s := new(fakeStore)
		b := &broker{answer: func(ctx context.Context, messages []producer.Message) error {
			i := slices.IndexFunc(messages, func(m producer.Message) bool { return strings.HasSuffix(m.ID, " 10") })
			if i < 0 {
				return nil
			}
			<-ctx.Done()
			return &producer.PublishError{Failures: []producer.Failure{{Index: i, ID: messages[i].ID, Err: ctx.Err(), Unknown: true}}}
		}}
		r := newRelay(t, s, b, outbox.Config{})
		stop := start(t, r)
		for round := range 2 { // also after it has had nothing to do
			after(t, 10*time.Minute)
			begin := time.Now()
			for i := range 300 {
				s.write(fmt.Sprintf("%d %d", round, i))
			}
			r.Wake()
			after(t, time.Second)
			if at := b.times(fmt.Sprintf("%d 299", round), begin); len(at) != 1 {
				t.Errorf("the last of 300 rows was published %d times within a second, want once", len(at))
			}
		}
		b.heal()
		after(t, 2*time.Minute)
		stop()
	})
}

// Once the broker has acknowledged a full batch, the next one does not wait until that is recorded.
func TestRelay_TheNextBatchIsPublishedWhileTheFirstIsRecorded(t *testing.T) {
	virtual(t, func(t *testing.T) {
		begin := time.Now()
		s := new(fakeStore).write("a", "b")
		s.onSettle = func(apply func()) error {
			<-time.After(time.Second)
			apply()
			return nil
		}
		b := &broker{}
		stop := start(t, newRelay(t, s, b, outbox.Config{BatchSize: 1}))
		after(t, 10*time.Second)
		stop()
		for _, id := range []string{"a", "b"} {
			if at := b.times(id, begin); len(at) != 1 || at[0] != 0 {
				t.Errorf("%s was published at %v, want at once", id, at)
			}
		}
	})
}
