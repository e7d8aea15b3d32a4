package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

// A rig is a loop with a transport that is made up: it notes what is done with its messages.
type rig struct {
	t       *testing.T
	loop    *Loop
	store   dedupstore.Store
	retries func(m *fake, d consumer.Decision) (due time.Time, again bool) // of Decided; nil: here, after the delay
	dead    publisher                                                      // of dead letters of batches; nil: none
	stuck   chan struct{}                                                  // Acked waits for its end; nil: for nothing

	acking atomic.Int32

	mu      sync.Mutex
	began   []string // handlers, in their order; a batch is "a+b"
	acked   []string
	settled []string // by another decision
	back    []string // given back
	dues    map[string]time.Time
	left    int
	running int
	most    int              // running at once
	keys    map[orderKey]int // handlers that run
}

// A publisher publishes, or not.
type publisher func(ctx context.Context) error

func (p publisher) Publish(ctx context.Context, _ ...producer.Message) error { return p(ctx) }

type orderKey struct {
	of  *Assignment
	key string
}

// A fake is a message whose broker takes nothing back, as Kafka.
type fake struct {
	Item
	*rig
	id      string
	due     time.Time
	payload []byte
	starts  func() // called when the loop starts it
}

// A returned is a message that can be given back, as one of NATS.
type returned struct{ *fake }

func (m returned) GiveBack(_ context.Context, due time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.back = append(m.back, m.id)
	m.dues[m.id] = due
}

func (m *fake) Delivery(tries int) (consumer.Delivery, time.Time) {
	if tries != m.Tries() {
		m.t.Errorf("%s was tried %d times, and says %d", m.id, tries, m.Tries())
	}
	if m.starts != nil {
		m.starts()
	}
	return consumer.Delivery{
		Topic: "orders", Header: producer.Header{producer.HeaderID: m.id}, Count: tries + 1, Payload: m.payload,
	}, m.due
}

func (m *fake) Acked(context.Context) {
	if n := m.acking.Add(1); n > 1 {
		m.t.Errorf("%d messages are acknowledged at once", n)
	}
	defer m.acking.Add(-1)
	if m.stuck != nil {
		<-m.stuck
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.acked = append(m.acked, m.id)
}

func (m *fake) Decided(_ context.Context, d consumer.Decision) (due time.Time, again bool) {
	if d.Action != consumer.RetryLater {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.settled = append(m.settled, m.id)
		return due, false
	}
	if m.retries != nil {
		return m.retries(m, d)
	}
	return time.Now().Add(d.Delay), true
}

func (r *rig) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left++
}

func newRig(t *testing.T) *rig {
	return &rig{t: t, store: consumertest.NewStore(t), dues: map[string]time.Time{}, keys: map[orderKey]int{}}
}

// each makes the loop one of a handler of single messages. It has a second between two attempts.
func (r *rig) each(slots int, handle func(ctx context.Context, id string) error) {
	r.t.Helper()
	policy := oncemill.Policy{Backoff: oncemill.Backoff{Min: time.Second, Max: time.Second}}
	once := consumertest.NewProcessor(r.t, r.store, consumer.Config{Policy: policy})
	r.loop = New(Work{Once: once, Handler: "charge", Each: func(ctx context.Context, m Message) error {
		f := fakeOf(m)
		r.enter(f)
		defer r.exit(f)
		return handle(ctx, f.id)
	}}, slots)
}

func fakeOf(m Message) *fake {
	if back, is := m.(returned); is {
		return back.fake
	}
	return m.(*fake)
}

func (r *rig) enter(m *fake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began = append(r.began, m.id)
	r.running++
	r.most = max(r.most, r.running)
	key := orderKey{m.of, m.Key}
	if r.keys[key]++; m.Key != "" && r.keys[key] > 1 {
		r.t.Errorf("two of key %q run at once, the second is %s", m.Key, m.id)
	}
}

func (r *rig) exit(m *fake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.keys[orderKey{m.of, m.Key}]--
}

// wants waits until nothing goes on any more, and compares. What may start at the same time has no order.
func (r *rig) wants(what string, got *[]string, want ...string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(want)
	if !slices.Equal(slices.Sorted(slices.Values(*got)), want) {
		r.t.Errorf("%s: %v, want %v", what, *got, want)
	}
}

// messages makes some whose names begin with their order keys: "a1" has the key a, "1" none.
func (r *rig) messages(ids ...string) (all []*Item) {
	for _, id := range ids {
		m := &fake{Item: Item{Key: keyOf(id)}, rig: r, id: id}
		m.Message = m
		all = append(all, &m.Item)
	}
	return all
}

// returnable makes such messages whose broker takes them back.
func (r *rig) returnable(ids ...string) []*Item {
	all := r.messages(ids...)
	for _, i := range all {
		i.Message = returned{i.Message.(*fake)}
	}
	return all
}

func keyOf(id string) string {
	if id[0] < 'a' {
		return ""
	}
	return id[:1]
}

// assign returns an assignment with room for all.
func (r *rig) assign() *Assignment { return r.loop.Assign(context.Background(), nil, 1<<30, r.leave) }

// ends halts an assignment, and waits for all that goes on in it.
func (r *rig) ends(a *Assignment) {
	r.t.Helper()
	a.Halt()
	if late := Late([]*Assignment{a}, time.Hour); len(late) > 0 {
		r.t.Fatal("the assignment has not ended after an hour")
	}
	if a.ctx.Err() == nil {
		r.t.Error("the assignment has ended, and its context goes on")
	}
	r.loop.Wait()
}

// gates let handlers go on, one by one.
type gates struct {
	mu  sync.Mutex
	all map[string]chan error
}

func (g *gates) of(id string) chan error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[string]chan error{}
	}
	if g.all[id] == nil {
		g.all[id] = make(chan error, 10)
	}
	return g.all[id]
}

// wait is a handler that waits for its gate.
func (g *gates) wait(ctx context.Context, id string) error {
	select {
	case err := <-g.of(id):
		return err
	case <-ctx.Done():
		return cmp.Or(context.Cause(ctx), ctx.Err())
	}
}

func (g *gates) open(ids ...string) {
	for _, id := range ids {
		g.of(id) <- nil
	}
}

var errFailed = errors.New("failed")

func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}
