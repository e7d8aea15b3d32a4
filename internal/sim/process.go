package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A process is one life of a worker.
type process struct {
	name    string // worker and life
	worker  *worker
	history *history
	world   *world
	version version
	engine  *engine // of a worker
	wake    func()  // of a relay
	dead    bool
	cut     bool                     // nobody hears it
	open2   []*transaction           // that it has begun
	open    map[chan struct{}]func() // ends calls that stand at the border
	flights []*delivery              // deliveries that it has
	calls   []*call                  // of handlers
	ctx     context.Context
	kill    context.CancelCauseFunc
}

// A worker is a place for processes, one after the other.
type worker struct {
	number, lives int
	process       *process
}

func (h *history) start(w *worker) {
	if h.closing {
		return
	}
	w.lives++
	p := &process{
		name: fmt.Sprintf("p%d.%d", w.number, w.lives), worker: w, history: h, world: h.world,
		version: h.versions[w.number%2], open: map[chan struct{}]func(){},
	}
	p.ctx, p.kill = context.WithCancelCause(context.Background())
	p.engine = newEngine(h.store(p), p.version, p)
	w.process = p
	h.judge.processes[p.name] = p
	h.lives = append(h.lives, p)
	h.world.say("%s starts", p.name)
}

// step is a point at which the process may die. It reports whether it is dead.
func (p *process) step(where string) bool {
	if !p.dead && p.world.happens("kill", where, 450) {
		p.die(where)
	}
	return p.dead
}

// die ends the process: nothing that it does from now on reaches the border.
func (p *process) die(where string) {
	w := p.world
	w.say("%s dies: %s", p.name, where)
	w.saw("death")
	p.end()
	for _, f := range p.flights {
		if f.open {
			f.close()
			p.history.comeBack(f.slot, p.history.ackWait)
		}
	}
	w.after(w.between("restart of "+p.name, 100*time.Millisecond, 4*time.Second), func() {
		if p.history.face == "relay" {
			p.history.startRelay(p.worker)
		} else {
			p.history.start(p.worker)
		}
	})
}

// leave ends the transactions of a process that is dead, but for those whose commits are on their way: the database
// notices.
func (p *process) leave() {
	for _, tx := range p.open2 {
		if _, locked := p.history.server.locked[tx.claims[0].Key]; !locked && !tx.over {
			tx.over = true
			p.history.server.leave(tx)
		}
	}
}

// end lets go of everything that stands at the border.
func (p *process) end() {
	p.dead = true
	for _, release := range p.open {
		release()
	}
	p.kill(errDead)
	p.leave()
	for _, c := range p.calls {
		for _, g := range c.grants {
			if g != nil {
				g.running = false
			}
		}
	}
}

// A call is one of a handler, for one message or for several.
type call struct {
	process *process
	name    string
	runs    []run
	grants  []*grant
	effects []*event
	events  []*event
	ret     chan struct{}
	ended   bool
	how     []string // how it ends, for each run: "", the kind of an error, or panic
	whole   bool     // it fails as a whole
	heeds   bool
	cause   error
	tx      *transaction // of an inbox
}

// handle is what a handler does: it stands at the border until the world has played its script.
func (p *process) handle(ctx context.Context, runs []run) []error {
	c := &call{process: p, runs: runs, ret: make(chan struct{}), how: make([]string, len(runs))}
	c.heeds, c.tx = true, transactionOf(ctx)
	w := p.world
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = r.id
	}
	name := p.name + " handler " + strings.Join(ids, "+")
	begun := make(chan struct{})
	w.arrive(name, func() {
		defer close(begun)
		c.name = w.next(name)
		if p.dead {
			c.finish(errDead)
			return
		}
		p.open[c.ret] = func() { c.finish(errDead) }
		c.begin()
	})
	<-begun
	if c.heeds {
		select {
		case <-c.ret:
		case <-ctx.Done():
			cause := context.Cause(ctx)
			w.arrive(name, func() {
				if !c.ended {
					w.say("%s is cancelled: %v", c.name, cause)
					w.saw("handler cancelled")
					c.finish(cause)
				}
			})
			<-c.ret
		}
	} else {
		<-c.ret
	}
	errs := make([]error, len(runs))
	for i, how := range c.how {
		switch {
		case c.cause != nil:
			errs[i] = c.cause
		case how == "panic":
			panic("sim: the handler panics")
		case how != "":
			errs[i] = marked(how)
		}
	}
	switch {
	case c.whole && c.cause == nil:
		return append(errs, errors.New("one too many")) //nolint:makezero // that is the mistake
	case slices.ContainsFunc(errs, func(err error) bool { return err != nil }):
		return errs
	}
	return nil
}

// begin starts a call, and decides what it will do.
func (c *call) begin() {
	p, w, h := c.process, c.process.world, c.process.history
	w.say("%s begins, %v", c.name, c.runs)
	now := h.server.now()
	var beside []*grant
	for _, other := range p.calls {
		if !other.ended {
			beside = append(beside, other.grants...)
		}
	}
	beside = slices.DeleteFunc(beside, func(g *grant) bool { return g == nil })
	for _, r := range c.runs {
		g := h.judge.starts(p.name, r.id, r.fence, now, beside)
		if g != nil {
			beside = append(beside, g)
		}
		c.grants = append(c.grants, g)
	}
	p.calls = append(slices.DeleteFunc(p.calls, func(c *call) bool { return c.ended }), c)
	if p.step("handler begins, " + c.name) {
		return
	}
	takes := w.between("takes "+c.name, time.Millisecond, 60*time.Millisecond)
	if w.happens("slow handler", c.name, 12_000) {
		takes = w.between("takes long "+c.name, 500*time.Millisecond, 9*time.Second)
	}
	c.heeds = !w.happens("ignores its context", c.name, 50_000)
	if w.happens("nobody hears the process of a handler", c.name, 1200) {
		w.say("nobody hears %s", p.name)
		takes, c.heeds, p.cut = w.between("takes long "+c.name, 7*time.Second, 9*time.Second), false, true
		w.after(w.between("lasts "+c.name, 6*time.Second, 8*time.Second), func() { p.cut = false })
	}
	if len(c.runs) > 1 && w.happens("batch fails as a whole", c.name, 16_000) {
		c.whole = true
	}
	for i, r := range c.runs {
		name := c.name + " for " + r.id
		effect := true
		for _, kind := range []struct {
			how string
			per int
		}{{"error", 12_000}, {"permanent", 4000}, {"no effect", 2500}, {"uncounted", 3000}, {"retry after", 3000},
			{"panic", 4000}, {"hang", 4000}} {
			if w.happens("handler ends with "+kind.how, name, kind.per) {
				c.how[i] = kind.how
				effect = kind.how != "no effect" && w.roll("effect of "+name, 2) == 0
				break
			}
		}
		if h.poison[r.id] != "" && r.fence != 0 {
			c.poisoned(r.id)
		}
		if c.how[i] == "hang" {
			c.how[i], takes = "error", 20*time.Second
		}
		if effect {
			at := w.between("effect at "+name, 0, takes*9/10)
			c.effects = append(c.effects, w.after(at, func() {
				if c.ended || p.dead || p.step("before the effect of "+name) {
					return
				}
				w.say("effect: %s", name)
				if c.tx == nil {
					h.judge.makes(r.id, c.grants[i])
				} else if !c.tx.over {
					c.tx.names, c.tx.fences = append(c.tx.names, r.id), append(c.tx.fences, r.fence)
				}
				p.step("after the effect of " + name)
			}))
		}
	}
	if c.tx != nil && w.happens("conflict", c.name, 6000) {
		c.tx.refused = errConflict
		w.saw("conflict")
	}
	c.events = append(c.events, w.after(takes, func() {
		if !c.ended && !p.dead {
			c.finish(nil)
		}
	}))
}

// poisoned has the message end its process, before or after its effect.
func (c *call) poisoned(id string) {
	p, w := c.process, c.process.world
	c.events = append(c.events, w.after(w.between("dies at "+c.name, time.Millisecond, 50*time.Millisecond), func() {
		if !c.ended && !p.dead && p.history.poison[id] != "" {
			w.saw("poison")
			p.die("killed by " + id)
		}
	}))
}

// finish ends a call.
func (c *call) finish(cause error) {
	if c.ended {
		return
	}
	c.ended, c.cause = true, cause
	for _, e := range append(c.effects, c.events...) {
		e.off = true
	}
	w := c.process.world
	for i, g := range c.grants {
		if g != nil {
			g.running = false
			switch {
			case cause != nil:
				g.result = "cancelled"
			case c.whole || len(c.runs) > 1 && slices.Contains(c.how, "panic"):
				g.result = "whole"
			case c.how[i] == "":
				g.result = "success"
			default:
				g.result = c.how[i]
			}
			if c.whole && cause == nil || len(c.runs) > 1 && c.how[i] == "panic" {
				g.whole++
			}
		}
	}
	if len(c.runs) > 1 && slices.Contains(c.how, "panic") || c.whole && cause == nil {
		w.saw("batch failed as a whole")
		for _, g := range c.grants {
			if g != nil {
				g.whole = g.calls
			}
		}
	}
	if !errors.Is(cause, errDead) {
		w.say("%s ends: %q, whole %t, cause %v", c.name, c.how, c.whole, cause)
	}
	delete(c.process.open, c.ret)
	close(c.ret)
}

// A delivery is one that a process has.
type delivery struct {
	slot    *slot
	process *process
	name    string
	came    time.Time
	open    bool // the broker waits for it
	decided bool // the process is done with it
	cancel  context.CancelCauseFunc
	ctx     context.Context
	timer   *event
}

func (f *delivery) close() {
	f.open = false
	if f.timer != nil {
		f.timer.off = true
	}
}

// take gives a process a message.
func (p *process) take(f *delivery) {
	f.open = true
	p.flights = append(slices.DeleteFunc(p.flights, func(f *delivery) bool { return !f.open || f.decided }), f)
	f.ctx, f.cancel = context.WithCancelCause(traced(p.ctx, f.slot.number, f.slot.count))
	f.timer = p.world.after(p.history.ackWait, func() {
		if f.open {
			p.world.say("%s: not acknowledged in time", f.name)
			p.world.saw("redelivered in progress")
			p.history.comeBack(f.slot, 0)
		}
	})
}

// process has the production code work on deliveries.
func (p *process) work(flights []*delivery) {
	h := p.history
	decided := func(f *delivery) func(decision) {
		return func(d decision) { p.world.arrive(f.name+" decided", func() { p.decided(f, d) }) }
	}
	f := flights[0]
	switch h.face {
	case "single", "inbox":
		p.engine.one(f.ctx, f.slot.message, f.slot.count, func(ctx context.Context, r run) error {
			return first(p.handle(ctx, []run{r}))
		}, decided(f))
	case "outputs":
		outputs := func(ctx context.Context, r run) ([]producer.Message, error) {
			if err := first(p.handle(ctx, []run{r})); err != nil {
				return nil, err
			}
			return h.outputsOf(r), nil
		}
		p.engine.outputs(f.ctx, f.slot.message, f.slot.count, outputs, decided(f))
	case "do":
		p.engine.do(f.ctx, f.slot.message, p.version.maxWait, func(ctx context.Context, r run) error {
			return first(p.handle(ctx, []run{r}))
		}, func(d decision, value string) {
			p.world.arrive(f.name+" decided", func() {
				if d.action == "ack" && d.err == nil && !p.dead {
					h.judge.given(f.slot.message.ID, value)
				}
				p.decided(f, d)
			})
		})
	default:
		messages, counts, contexts := make([]producer.Message, len(flights)), make([]int, len(flights)),
			make([]context.Context, len(flights))
		for i, f := range flights {
			messages[i], counts[i], contexts[i] = f.slot.message, f.slot.count, f.ctx
		}
		p.engine.together(p.ctx, messages, counts, contexts, p.handle, func(i int, d decision) {
			decided(flights[i])(d)
		})
	}
}

func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

func resultOf(fence uint64) string { return fmt.Sprintf("done under fence %d", fence) }

// given: a caller of Do got a value.
func (j *judge) given(id, value string) {
	s := j.of(id)
	text, _ := json.Marshal(value)
	if s.bypassed > 0 {
		return
	}
	for _, o := range s.outcomes {
		if bytes.Equal(o.outcome.Result, text) || o.outcome.Truncated && value == resultOf(o.fence) {
			return
		}
	}
	j.w.breaks(replayed, "%s: a caller of Do is given %q, which is no stored result", id, value)
}

// decided: the production code says what to do with a delivery.
func (p *process) decided(f *delivery, d decision) {
	w := p.world
	if p.dead {
		return
	}
	f.decided = true
	w.say("%s: %s after %v, %d messages to publish: %v", f.name, d.action, d.delay, len(d.publish), d.err)
	w.saw("decision " + d.action)
	if len(d.publish) > 0 {
		p.publishOutputs(f, d, 0)
		return
	}
	p.settleFlight(f, d)
}

// publishOutputs does what an adapter does with a publication: publish, note, ack.
func (p *process) publishOutputs(f *delivery, d decision, n int) {
	w, h := p.world, p.history
	if n == 0 && !d.bypassed {
		h.judge.publishes(p.name, f.slot.message.ID, h.server.now())
	}
	if n == len(d.publish) {
		go func() {
			err := d.done()
			w.arrive(f.name+" published", func() {
				if p.dead || p.step("published "+f.name) {
					return
				}
				w.say("%s: published is noted: %s", f.name, sayError(err))
				if err != nil {
					d.action, d.delay = "retry", 0
				}
				p.settleFlight(f, d)
			})
		}()
		return
	}
	m := d.publish[n]
	name := w.next(fmt.Sprintf("%s publishes output %d", f.name, n))
	w.after(w.between(name, 100*time.Microsecond, 3*time.Millisecond), func() {
		if p.dead || p.step("before "+name) {
			return
		}
		lost := w.happens("publish lost", name, 3000)
		unknown := !lost && w.happens("publish not answered", name, 3000)
		if !lost {
			w.say("%s: %s %q", name, m.ID, m.Payload)
			of := fmt.Sprint("output of ", d.fence)
			if d.bypassed { // nothing keeps it
				of = name
			}
			h.judge.published(p.name, m.ID, f.slot.message.ID, 0, of, string(m.Payload))
		}
		if !lost && !unknown {
			if !p.step("after " + name) {
				p.publishOutputs(f, d, n+1)
			}
			return
		}
		w.saw("output publish failed")
		w.say("%s: fails, unknown %t", name, unknown)
		go func() {
			delay := d.abandon()
			w.arrive(f.name+" abandoned", func() {
				d.action, d.delay, d.publish = "retry", delay, nil
				if !p.dead {
					p.settleFlight(f, d)
				}
			})
		}()
	})
}

// settleFlight carries a decision out.
func (p *process) settleFlight(f *delivery, d decision) {
	w, h, s := p.world, p.history, f.slot
	if !f.open { // the broker does not know the delivery any more
		w.saw("stale decision")
	}
	judge := h.judge
	switch d.action {
	case "ack":
		w.after(w.between("ack of "+f.name, 50*time.Microsecond, 2*time.Millisecond), func() {
			if p.dead || p.step("before the ack of "+f.name) {
				return
			}
			judge.acked(p.name, s.message.ID, f.came, d.bypassed, d.mismatch)
			if w.happens("ack lost", f.name, 3000) {
				w.saw("ack lost")
				return // the timer brings it again
			}
			w.say("%s: acked", f.name)
			f.close()
			s.acked = true
		})
	case "retry":
		if f.open {
			f.close()
			delay := d.delay
			if w.happens("redelivered early", f.name, 5000) {
				delay = 0
				w.saw("redelivered early")
			}
			h.comeBack(s, delay)
		}
	case "leave": // the timer brings it again
		w.saw("left")
	default:
		w.breaks(noLoss, "%s is rejected although there are dead letters", f.name)
	}
}

// Publish is the publisher of dead letters.
func (p *process) Publish(ctx context.Context, messages ...producer.Message) error {
	w, h := p.world, p.history
	m := messages[0]
	of := m.Header.Get(producer.HeaderOriginalID)
	done := make(chan error, 1)
	over := make(chan struct{})
	name := p.name + " dead letter of " + of
	answer := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	w.arrive(name, func() {
		if p.dead {
			answer(errDead)
			return
		}
		p.open[over] = func() { answer(errDead) }
		name := w.next(name)
		outcome := m.Header.Get(producer.HeaderOutcome)
		if outcome != "mismatch" {
			h.judge.publishes(p.name, of, h.server.now())
		}
		w.after(w.between(name, 100*time.Microsecond, 3*time.Millisecond), func() {
			if p.dead || p.step("before "+name) {
				return
			}
			lost := w.happens("dead letter lost", name, 6000)
			unknown := !lost && w.happens("dead letter not answered", name, 4000)
			if !lost {
				w.say("%s: %s %s, fence %s", name, outcome, m.ID, m.Header.Get(producer.HeaderFence))
				h.letter(p, m, of, outcome)
			}
			switch {
			case lost || unknown:
				w.saw("dead letter failed")
				answer(errNetwork)
			default:
				if !p.step("after " + name) {
					answer(nil)
				}
			}
		})
	})
	select {
	case err := <-done:
		w.arrive(name+" ~", func() { delete(p.open, over) })
		return err
	case <-ctx.Done():
		w.arrive(name+" ~", func() { delete(p.open, over) })
		return context.Cause(ctx)
	}
}

// busy is how many deliveries the process is at.
func (p *process) busy() int {
	p.flights = slices.DeleteFunc(p.flights, func(f *delivery) bool { return f.decided })
	return len(p.flights)
}
