package sim

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

const (
	workers = 3
	keys    = 5
	faulty  = 45 * time.Second // how long there are faults
)

// A history is messages, workers, a store, and what happens to them.
type history struct {
	world    *world
	judge    *judge
	server   *server
	face     string // what of the engine is driven
	versions [2]version
	workers  []*worker
	lives    []*process
	slots    []*slot
	poison   map[string]string
	ackWait  time.Duration
	limit    int           // deliveries of a message; 0: none
	outbox   *outboxServer // of relays
	closing  bool
	closed   int
}

// A slot is one copy of a message at the broker.
type slot struct {
	message producer.Message
	number  int
	count   int // deliveries
	acked   bool
	gone    bool // the broker has given it up
	waiting bool // it will be delivered
}

// A Result is what became of a history.
type Result struct {
	Seed   uint64
	Log    []string
	Faults []string
	Seen   map[string]int
	Broken *Violation
	Lasted time.Duration // virtual
}

// Run makes the history of a seed, without some faults.
func Run(t *testing.T, seed uint64, drop map[string]bool) (r Result) {
	t.Helper()
	r.Seed = seed
	if made++; made%16 == 0 {
		runtime.GC() // not within a history, whose goroutines it would stop: see TestMain
	}
	defer func() {
		if v := recover(); v != nil {
			r.Broken = &Violation{"A guard leaves no goroutine behind, and nothing panics", fmt.Sprint(v)}
		}
	}()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, drop)
		time.Sleep(time.Duration(hash(seed, "began") % uint64(1000*time.Hour))) // jitter follows from the time
		w.began = time.Now()
		defer func() {
			if v := recover(); v != nil {
				fmt.Fprintf(os.Stderr, "seed %d panics\n%s\n", seed, strings.Join(w.log, "\n"))
				panic(v)
			}
		}()
		h := newHistory(w)
		h.play()
		r.Log, r.Faults, r.Seen, r.Broken, r.Lasted = w.log, w.faults, w.seen, w.broken, time.Since(w.began)
	})
	return r
}

var made int

func newHistory(w *world) *history {
	h := &history{world: w, server: newServer(), poison: map[string]string{}}
	h.judge = &judge{
		w: w, subjects: map[string]*subject{}, sent: map[string]int{}, payloads: map[string]string{},
		mismatches: map[string]int{}, processes: map[string]*process{},
	}
	h.server.watch = h.judge
	faces := []string{
		"single", "single", "single", "outputs", "outputs", "batch", "batch", "batch", "do", "inbox", "inbox", "inbox batch",
		"relay",
	}
	h.face = faces[w.roll("face", len(faces))]
	h.ackWait = []time.Duration{6 * time.Second, 15 * time.Second}[w.roll("ack wait", 2)]
	// The odd nanoseconds keep timeouts, which are a sixth, from ending at a look at the leases, which is each 24th.
	h.versions = [2]version{
		{
			lease: 3300*time.Millisecond + 23, window: 5 * time.Minute, maxWait: time.Second,
			backoff: 100 * time.Millisecond, attempts: 4,
		},
		{
			lease: 5*time.Second + 15, window: 10 * time.Minute, maxWait: 300 * time.Millisecond,
			backoff: 40 * time.Millisecond, attempts: 6,
		},
	}
	parks := w.roll("policies", 20)
	for i := range h.versions {
		v := &h.versions[i]
		v.park = parks < 4 || parks < 6 && i == 0
		v.open = parks >= 18
		if strings.HasPrefix(h.face, "inbox") {
			v.open, v.park = false, v.park && parks < 3
		}
		v.produced = []int{0, 300}[w.roll("room for messages", 2)]
	}
	h.judge.park = h.versions[0].park && h.versions[1].park
	h.judge.mute = h.face == "do"
	h.judge.inbox = strings.HasPrefix(h.face, "inbox")
	if w.roll("limit", 6) == 0 {
		h.limit = 8
	}
	if w.roll("poison", 4) == 0 && w.once("poison") {
		h.poison["k4"] = "before"
	}
	return h
}

// play makes the history happen.
func (h *history) play() {
	w := h.world
	w.say("seed %d: %s, versions %+v", w.seed, h.face, h.versions)
	if h.face == "relay" {
		h.playRelays()
	} else {
		h.playMessages()
	}
	if w.broken == nil {
		h.closeAll(false)
		end := time.Now().Add(10 * time.Minute)
		for w.broken == nil && h.closed < len(h.lives) && time.Now().Before(end) {
			w.run(time.Now().Add(time.Second))
		}
		if w.broken == nil && h.closed < len(h.lives) {
			w.breaks("Close waits until nothing that the guard has begun is under way", "it waits for ten minutes")
		}
	}
	h.closeAll(true)
	for quiet := 0; quiet < 10; quiet++ {
		synctest.Wait()
		if w.receive() > 0 || h.closed < len(h.lives) {
			quiet = 0
		}
		time.Sleep(time.Second)
	}
}

// playMessages makes a history of messages that workers get.
func (h *history) playMessages() {
	w := h.world
	for i := range workers {
		h.workers = append(h.workers, &worker{number: i + 1})
		h.start(h.workers[i])
	}
	h.messages()
	h.disturb()
	w.run(w.began.Add(faulty))
	if w.broken != nil {
		return
	}
	h.heal()
	h.settle()
	h.balance()
	id := fmt.Sprint("k", w.roll("late copy of", keys))
	if w.broken == nil && w.roll("late copy", 5) == 0 && w.once("late copy") {
		w.run(time.Now().Add(11 * time.Minute)) // longer than the windows
		h.publish(producer.Message{ID: id, Topic: topic, Payload: []byte("pay " + id)})
		h.settle()
		h.balance()
	}
}

// settle lets time pass until every copy is acknowledged, or ought to be.
func (h *history) settle() {
	w := h.world
	for end := time.Now().Add(10 * time.Minute); w.broken == nil && !h.settled() && time.Now().Before(end); {
		w.run(time.Now().Add(5 * time.Second))
	}
}

// closeAll closes the engines. With force all processes end as if killed.
func (h *history) closeAll(force bool) {
	h.closing = true
	for _, p := range h.lives {
		if force && !p.dead {
			p.end()
		}
		if h.face == "relay" {
			p.kill(errDead) // it stops cleanly
			continue
		}
		if p.engine == nil {
			continue
		}
		engine := p.engine
		p.engine = nil
		go func() {
			engine.close()
			h.world.arrive(p.name+" closed", func() { h.closed++ })
		}()
	}
}

// messages decides which copies of messages there are, and when.
func (h *history) messages() {
	w := h.world
	for k := range keys {
		id := fmt.Sprint("k", k)
		for n := range 5 + w.roll("copies of "+id, 5) {
			name := fmt.Sprintf("copy %d of %s", n, id)
			if n > 0 && !w.once(name) {
				continue
			}
			m := producer.Message{ID: id, Topic: topic, Payload: []byte("pay " + id)}
			if n > 1 && h.face != "do" && w.roll("content of "+name, 12) == 0 {
				m.Payload = []byte("another " + id)
			}
			most := 40 * time.Second
			if n < 2 {
				most = 4 * time.Second // at about the same time
			}
			w.after(w.between("when "+name, 0, most), func() { h.publish(m) })
		}
	}
}

// disturb decides what goes wrong, and when.
func (h *history) disturb() {
	w := h.world
	at := func(what string, chance, most int, do func(n string)) {
		if w.roll("chance of "+what, 100) >= chance {
			return
		}
		for i := range 1 + w.roll("number of "+what, most) {
			name := fmt.Sprint(what, " ", i)
			if w.once(name) {
				w.after(w.between("when "+name, time.Second, faulty-2*time.Second), func() { do(name) })
			}
		}
	}
	at("clock", 30, 2, func(n string) {
		by := w.between("by "+n, -3*time.Second, 8*time.Second)
		w.say("the store's clock jumps by %v", by)
		w.saw("clock jump")
		h.server.skew += by
		h.judge.moved++
	})
	at("loss", map[bool]int{false: 30}[h.judge.inbox], 3, func(n string) {
		var of []string
		tail := w.roll("tail "+n, 2) == 0
		for key := range h.server.records {
			recent := time.Since(h.server.changed[key]) < 2*time.Second
			if tail && recent || !tail && key.ID == fmt.Sprint("k", w.roll("of "+n, keys)) {
				of = append(of, key.ID)
			}
		}
		slices.Sort(of)
		w.say("the store loses %v", of)
		for _, id := range of {
			h.judge.expire(h.judge.of(id), h.server.now())
			h.judge.lostRecord(id)
			delete(h.server.records, keyOf(id))
		}
	})
	at("outage", 35, 2, func(n string) {
		w.say("nobody reaches the store")
		w.saw("outage")
		w.down = true
		w.after(w.between("lasts "+n, 300*time.Millisecond, 8*time.Second), func() {
			w.say("the store is reached again")
			w.down = false
		})
	})
	at("full", 20, 2, func(n string) {
		w.say("the store is full")
		w.saw("full")
		h.server.full = true
		w.after(w.between("lasts "+n, 500*time.Millisecond, 8*time.Second), func() {
			w.say("the store has room")
			h.server.full = false
		})
	})
	at("partition", 50, 3, func(n string) {
		p := h.workers[w.roll("of "+n, workers)].process
		w.say("nobody hears %s", p.name)
		w.saw("partition")
		p.cut = true
		w.after(w.between("lasts "+n, time.Second, 12*time.Second), func() { p.cut = false })
	})
	at("rebalance", 30, 2, func(n string) {
		p := h.workers[w.roll("of "+n, workers)].process
		w.say("rebalance: what %s has is given to others", p.name)
		for _, f := range p.flights {
			if f.open {
				w.saw("rebalance")
				f.close()
				h.comeBack(f.slot, 0)
				f.cancel(errRebalance)
			}
		}
	})
	if h.face == "relay" {
		return
	}
	at("operator", 40, 4, func(n string) { h.operate(n) })
}

var errRebalance = fmt.Errorf("sim: the partition was revoked")

// operate: somebody changes a record by hand.
func (h *history) operate(n string) {
	w := h.world
	id := fmt.Sprint("k", w.roll("of "+n, keys))
	key, now := keyOf(id), h.server.now()
	s := h.judge.of(id)
	h.judge.expire(s, now)
	rec := h.server.find(key, now)
	seen := rec.Look(key, now)
	switch {
	case seen.State == dedupstore.Finished && seen.Outcome.Kind != dedupstore.Succeeded && w.roll("what "+n, 2) == 0:
		next, err := rec.Change(seen, dedupstore.Rerun{}, now)
		w.say("operator: rerun of %s: %s", id, sayError(err))
		if err == nil {
			h.server.keep(key, next)
			w.saw("operator's rerun")
			h.judge.explain(s, "somebody asked for a rerun")
			s.outcome.gone = time.Now()
			s.outcome, s.attempts, s.returned, s.crashes = nil, 0, 0, 0
		}
	case seen.State == dedupstore.Finished && seen.Outcome.Kind == dedupstore.Succeeded && w.roll("what "+n, 2) == 0:
		w.saw("rerun that names a success")
		h.publish(producer.Message{ID: id, Topic: topic, Payload: []byte("pay " + id), Header: producer.Header{
			producer.HeaderRerun: strconv.FormatUint(seen.Decided, 10),
		}})
	case seen.State == dedupstore.Finished:
		_, err := rec.Change(seen, dedupstore.Forget{}, now)
		w.say("operator: forget %s: %s", id, sayError(err))
		if err == nil {
			delete(h.server.records, key)
			w.saw("operator's forget")
			h.judge.explain(s, "somebody deleted the record")
			h.judge.forget(s)
			s.fence = 0
		}
	}
}

// publish adds a copy of a message.
func (h *history) publish(m producer.Message) {
	s := &slot{message: m, number: len(h.slots)}
	h.slots = append(h.slots, s)
	h.world.say("published: copy %d, %s %q %s", s.number, m.ID, m.Payload, m.Header.Get(producer.HeaderRerun))
	h.comeBack(s, 0)
}

// comeBack has a copy delivered after a time.
func (h *history) comeBack(s *slot, d time.Duration) {
	if s.waiting || s.gone {
		return
	}
	s.waiting = true
	if strings.HasSuffix(h.face, "batch") { // so that there are several at once
		d += h.world.between(fmt.Sprint("gathers ", s.number, " ", s.count), 0, 400*time.Millisecond)
	}
	way := fmt.Sprint("way of ", s.number, " ", s.count)
	h.world.after(d+h.world.between(way, 100*time.Microsecond, 5*time.Millisecond), func() { h.deliver(s) })
}

// deliver gives a copy to a worker that is alive.
func (h *history) deliver(s *slot) {
	w := h.world
	s.waiting = false
	if s.acked || h.closing {
		return
	}
	p := h.workers[w.roll(fmt.Sprint("who gets ", s.number, " ", s.count), workers)].process
	if p.dead || p.busy() >= 12 {
		s.waiting = true
		w.after(w.between(w.next(fmt.Sprint("again ", s.number)), 20*time.Millisecond, 300*time.Millisecond), func() {
			s.waiting = false
			h.comeBack(s, 0)
		})
		return
	}
	if h.limit > 0 && s.count >= h.limit && !w.calm {
		w.say("copy %d has been delivered %d times: the broker gives it up", s.number, s.count)
		w.saw("delivery limit")
		s.gone = true
		return
	}
	flights := []*delivery{h.fly(s, p)}
	if strings.HasSuffix(h.face, "batch") {
		for _, other := range h.slots {
			if len(flights) < 5 && other != s && other.waiting && !other.acked && !other.gone &&
				w.roll(fmt.Sprint("together ", s.number, " ", s.count, " ", other.number), 3) > 0 {
				flights = append(flights, h.fly(other, p))
			}
		}
	}
	for _, f := range flights {
		w.say("%s is delivered", f.name)
	}
	if !p.step("delivery of " + flights[0].name) {
		p.work(flights)
	}
}

func (h *history) fly(s *slot, p *process) *delivery {
	s.count++
	name := fmt.Sprintf("%s copy %d.%d (%s)", p.name, s.number, s.count, s.message.ID)
	f := &delivery{slot: s, process: p, name: name, came: time.Now()}
	p.take(f)
	return f
}

// letter: a dead letter has reached the broker. Somebody may ask for a rerun.
func (h *history) letter(p *process, m producer.Message, of, outcome string) {
	if outcome == "mismatch" {
		h.judge.mismatches[of]++
		h.world.saw("dead letter mismatch")
		return
	}
	fence, _ := strconv.ParseUint(m.Header.Get(producer.HeaderFence), 10, 64)
	h.judge.published(p.name, m.ID, of, fence, outcome, string(m.Payload))
	name := h.world.next("redrive of " + of)
	if h.world.happens("redrive", name, 40_000) {
		rerun, err := rerunOf(m)
		if err != nil {
			h.world.say("redrive of %s is refused: %v", of, err)
			return
		}
		delete(h.poison, of) // somebody has mended it
		h.world.after(h.world.between(name, time.Millisecond, 5*time.Second), func() { h.publish(rerun) })
		h.world.saw("redrive")
	}
}

// outputsOf are what a handler produces.
func (h *history) outputsOf(r run) []producer.Message {
	text := fmt.Sprintf("of %s under %d", r.id, r.fence)
	if h.world.happens("large output", text, 15_000) {
		text += fmt.Sprintf("%300s", "large")
	}
	made := []producer.Message{{Topic: "receipts", Payload: []byte(text)}}
	if h.world.roll("outputs "+text, 2) == 0 {
		made = append(made, producer.Message{Topic: "receipts", Payload: []byte("2 " + text)})
	}
	return made
}

// heal ends all faults.
func (h *history) heal() {
	w := h.world
	w.calm, w.down, h.server.full = true, false, false
	w.say("no more faults")
	for _, worker := range h.workers {
		worker.process.cut = false
	}
}

func (h *history) settled() bool {
	for _, s := range h.slots {
		if !s.acked && !s.gone {
			return false
		}
	}
	for _, w := range h.workers {
		if w.process.dead {
			return false
		}
	}
	return true
}

// balance looks at what must be true at the end.
func (h *history) balance() {
	for _, s := range h.slots {
		of := h.judge.of(s.message.ID)
		switch {
		case s.gone:
		case !s.acked:
			h.world.breaks(noLoss, "copy %d of %s is not acknowledged ten minutes after the last fault", s.number,
				s.message.ID)
		case of.effects == 0 && len(of.dead) == 0 && !h.judge.mute && h.judge.mismatches[s.message.ID] == 0:
			h.world.breaks(noLoss, "copy %d of %s is acknowledged, and there is neither effect nor dead letter", s.number,
				s.message.ID)
		}
	}
}

// store is what a process has of the server.
func (h *history) store(p *process) dedupstore.Store {
	c := conn{server: h.server, process: p}
	if h.judge.inbox {
		return &inbox{c}
	}
	return &c
}
