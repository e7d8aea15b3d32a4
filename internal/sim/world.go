package sim

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/oncemill/oncemill/internal/batch"
	"github.com/oncemill/oncemill/internal/pace"
)

// A world is one history: its time, its chance, its log, and the border at which the production code stands.
type world struct {
	seed    uint64
	drop    map[string]bool // faults to leave out
	faults  []string        // that happened, in their order
	level   map[string]int  // how often faults of a kind happen in this history, in percent of the usual
	calm    bool            // no faults any more
	down    bool            // nobody reaches the store
	began   time.Time
	log     []string
	seen    map[string]int // how often each rare state came up
	numbers map[string]int
	broken  *Violation

	events events
	number int

	mu       sync.Mutex
	arrivals []arrival
	arrived  chan struct{}
}

// A Violation is a promise that did not hold.
type Violation struct {
	Promise string // as docs/guarantees.md has it
	What    string
}

func newWorld(seed uint64, drop map[string]bool) *world {
	draws.at = time.Time{}
	return &world{
		seed: seed, drop: drop, level: map[string]int{}, seen: map[string]int{}, numbers: map[string]int{},
		arrived: make(chan struct{}, 1),
	}
}

// hash is FNV-1a of a name, mixed with a seed.
func hash(seed uint64, name string) uint64 {
	h := seed*0x9e3779b97f4a7c15 ^ 0xcbf29ce484222325
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001b3
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// draws counts equal draws of one moment: they have to differ, or what waits side by side would stay in step.
var draws struct {
	sync.Mutex
	at     time.Time
	equals map[draw]uint64
}

func init() {
	batch.Yield = func() {}
	pace.Draw = func(ctx context.Context, d time.Duration) time.Duration {
		of := trace.SpanContextFromContext(ctx)
		draws.Lock()
		defer draws.Unlock()
		if now := time.Now(); !now.Equal(draws.at) {
			draws.at, draws.equals = now, map[draw]uint64{}
		}
		one := draw{of.TraceID(), d}
		draws.equals[one]++
		return time.Duration(hash(uint64(draws.at.UnixNano())+draws.equals[one]<<56, string(one.of[:])) % uint64(d))
	}
}

type draw struct {
	of trace.TraceID // the delivery
	d  time.Duration
}

// traced gives a context the name of a delivery, as a trace ID: by it draws and claims of deliveries are told apart.
func traced(ctx context.Context, slot, count int) context.Context {
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, byte(slot >> 8), byte(slot), byte(count >> 8), byte(count)}, SpanID: trace.SpanID{1},
	}))
}

// roll draws a number below n for a name.
func (w *world) roll(name string, n int) int { return int(hash(w.seed, name) % uint64(n)) }

// between draws a duration for a name.
func (w *world) between(name string, least, most time.Duration) time.Duration {
	return least + time.Duration(hash(w.seed, name)%uint64(most-least+1))
}

// next numbers what has the same name.
func (w *world) next(name string) string {
	w.numbers[name]++
	return fmt.Sprintf("%s #%d", name, w.numbers[name])
}

// happens reports whether a fault happens, in so many of a hundred thousand cases. Histories differ in how often a kind
// of fault happens, so that each kind also comes alone.
func (w *world) happens(kind, name string, per100k int) bool {
	if w.calm {
		return false
	}
	level, known := w.level[kind]
	if !known {
		level = []int{0, 40, 100, 300}[w.roll("level of "+kind, 4)]
		w.level[kind] = level
	}
	if level == 0 || w.roll(kind+" "+name, 10_000_000) >= per100k*level {
		return false
	}
	fault := kind + ": " + name
	if w.drop[fault] {
		return false
	}
	w.faults = append(w.faults, fault)
	return true
}

// once reports whether a fault of the plan happens: it is there unless the history is made smaller.
func (w *world) once(fault string) bool {
	if w.drop[fault] {
		return false
	}
	w.faults = append(w.faults, fault)
	return true
}

// say adds a line to the log.
func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%12.6f ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

// saw counts a rare state.
func (w *world) saw(state string) { w.seen[state]++ }

// breaks notes the first promise that does not hold.
func (w *world) breaks(promise, format string, args ...any) {
	if w.broken == nil {
		w.broken = &Violation{promise, fmt.Sprintf(format, args...)}
		w.say("BROKEN: %s: %s", promise, w.broken.What)
	}
}

// An arrival is a call of the production code at the border.
type arrival struct {
	name  string // of equal names the first to come is first
	begin func() // what the world does with it
}

// arrive brings a call to the border. It does not wait.
func (w *world) arrive(name string, begin func()) {
	w.mu.Lock()
	w.arrivals = append(w.arrivals, arrival{name, begin})
	w.mu.Unlock()
	select {
	case w.arrived <- struct{}{}:
	default:
	}
}

// An event is something that happens at a time.
type event struct {
	at     time.Time
	number int
	do     func()
	off    bool
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].number, e[j].number)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// after has something happen after a time.
func (w *world) after(d time.Duration, do func()) *event {
	w.number++
	// No two events are at one time, and none at that of a timer.
	e := &event{at: time.Now().Add(d + time.Duration(w.number%991)*7), number: w.number, do: do}
	heap.Push(&w.events, e)
	return e
}

// run lets events happen, one at a time, until there is none, the time has come, or a promise is broken.
func (w *world) run(until time.Time) {
	for w.broken == nil {
		synctest.Wait()
		w.receive()
		for len(w.events) > 0 && w.events[0].off {
			heap.Pop(&w.events)
		}
		wait := time.Until(until)
		if wait <= 0 {
			return
		}
		if len(w.events) > 0 {
			wait = min(wait, time.Until(w.events[0].at))
		}
		if wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-w.arrived:
				timer.Stop()
			}
			continue
		}
		heap.Pop(&w.events).(*event).do()
	}
}

// receive begins what has arrived, in an order that does not depend on goroutines, and returns how much that was.
func (w *world) receive() (n int) {
	w.mu.Lock()
	arrivals := w.arrivals
	w.arrivals = nil
	select {
	case <-w.arrived:
	default:
	}
	w.mu.Unlock()
	slices.SortStableFunc(arrivals, func(a, b arrival) int { return cmp.Compare(a.name, b.name) })
	for _, a := range arrivals {
		a.begin()
	}
	return len(arrivals)
}
