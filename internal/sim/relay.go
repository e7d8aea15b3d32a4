package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// The promises of docs/guarantees.md and of package outbox about relays.
const (
	published  = "Every committed row is published"
	leasedOnly = "A row is handed to one relay at a time, and no other publishes it"
	copies     = "A relay publishes a row again only after a crash, or when it could not record the result"
	keepsOrder = "A row is sent only after all earlier rows of its order key were acknowledged"
	deadRows   = "A row is dead only when it was refused MaxAttempts times; attempts without an answer do not count"
)

const relayAttempts = 3

// A row is one of an outbox.
type row struct {
	outbox.Row
	due, ends time.Time
	token     string
	by        string // the relay that has it
	state     outbox.State
	refusals  int  // by the broker
	arrived   int  // copies at the broker
	acked     bool // a relay was told so
	recorded  bool // the outbox has it as published
	excuses   int  // of copies
}

// An outboxServer keeps rows, and their order.
type outboxServer struct {
	w    *world
	rows []*row
}

func (s *outboxServer) write(m producer.Message) {
	s.rows = append(s.rows, &row{
		Row: outbox.Row{Number: int64(len(s.rows) + 1), Message: m, OrderKey: m.Key},
		due: time.Now(), state: outbox.Pending,
	})
}

func (s *outboxServer) lease(by string, r outbox.LeaseRequest) (leased []outbox.Row) {
	now := time.Now()
	blocked := map[string]bool{}
	for _, one := range s.rows {
		suspect := one.Unknowns > 0 || one.token != ""
		switch {
		case one.state == outbox.Published:
			continue
		case one.OrderKey != "" && blocked[one.OrderKey]:
			continue
		case one.state == outbox.Dead, now.Before(one.due), now.Before(one.ends), suspect != r.Suspects:
			blocked[one.OrderKey] = one.OrderKey != ""
			continue
		case len(leased) == r.Limit:
			return leased
		}
		if one.token != "" { // a lease that ended without a result
			one.Unknowns++
			one.excuses++
			s.w.saw("row's lease ended")
		}
		one.token, one.by, one.ends = r.Token, by, now.Add(r.Lease)
		copied := one.Row
		copied.Message.Header = one.Message.Header.With(producer.HeaderID, one.Message.ID)
		leased = append(leased, copied)
	}
	return leased
}

func (s *outboxServer) settle(token string, results []outbox.Result) error {
	now := time.Now()
	for _, one := range s.rows {
		if one.token != token || one.state != outbox.Pending {
			continue
		}
		one.token, one.by, one.ends, one.due = "", "", time.Time{}, now
		for _, r := range results {
			if r.Number != one.Number {
				continue
			}
			one.due = now.Add(r.Delay)
			switch r.State {
			case outbox.Published, outbox.Removed:
				one.state, one.recorded = outbox.Published, true
				if one.arrived == 0 {
					s.w.breaks(published, "row %s is noted as published, and never was", one.Message.ID)
				}
			case outbox.Failed:
				one.Failures++
				s.w.saw("row refused")
			case outbox.Unknown:
				one.Unknowns++
				one.excuses++
				s.w.saw("row without an answer")
			case outbox.Dead:
				one.state = outbox.Dead
				s.w.saw("row dead")
				if one.refusals < relayAttempts {
					s.w.breaks(deadRows, "row %s is dead after %d refusals", one.Message.ID, one.refusals)
				}
			}
		}
	}
	return nil
}

// outboxConn is what a relay sees of the outbox.
type outboxConn struct {
	conn
	rows *outboxServer
}

type leaseAnswer struct {
	rows []outbox.Row
	err  error
}

// Lease implements [outbox.Store].
func (c *outboxConn) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	name := map[bool]string{true: "suspects", false: "rows"}[r.Suspects]
	a := exchange(ctx, &c.conn, "lease", []string{name}, itselfText, func(by, _ string) leaseAnswer {
		return leaseAnswer{rows: c.rows.lease(by, r)}
	}, func(err error) leaseAnswer { return leaseAnswer{err: err} }, func(_ string, a leaseAnswer) string {
		if len(a.rows) == 0 {
			return ""
		}
		var ids []string
		for _, row := range a.rows {
			ids = append(ids, row.Message.ID)
		}
		return strings.Join(ids, " ")
	})[0]
	return a.rows, a.err
}

func itselfText(s string) string { return s }

// Settle implements [outbox.Store].
func (c *outboxConn) Settle(ctx context.Context, token string, results []outbox.Result) error {
	return exchange(ctx, &c.conn, "record", []string{"results"}, itselfText, func(string, string) error {
		return c.rows.settle(token, results)
	}, itself, func(_ string, err error) string {
		var text []string
		for _, r := range results {
			text = append(text, fmt.Sprint(r.Number, " ", r.State))
		}
		return strings.Join(text, ", ") + ": " + sayError(err)
	})[0]
}

// Clean implements [outbox.Store].
func (c *outboxConn) Clean(context.Context, time.Duration, int) (int, error) { return 0, nil }

// startRelay starts a process that publishes rows.
func (h *history) startRelay(w *worker) {
	if h.closing {
		return
	}
	w.lives++
	p := &process{
		name: fmt.Sprintf("r%d.%d", w.number, w.lives), worker: w, history: h, world: h.world,
		open: map[chan struct{}]func(){},
	}
	p.ctx, p.kill = context.WithCancelCause(context.Background())
	w.process = p
	h.lives = append(h.lives, p)
	h.world.say("%s starts", p.name)
	store := &outboxConn{conn{server: h.server, process: p}, h.outbox}
	run, wake := newRelay(store, rowPublisher{p})
	p.wake = wake
	go func() {
		run(p.ctx)
		h.world.arrive(p.name+" closed", func() { h.closed++ })
	}()
}

// playRelays makes a history of relays.
func (h *history) playRelays() {
	w := h.world
	h.outbox = &outboxServer{w: w}
	for i := range workers {
		h.workers = append(h.workers, &worker{number: i + 1})
		h.startRelay(h.workers[i])
	}
	for n := range 24 + w.roll("rows", 24) {
		name := fmt.Sprint("row ", n)
		if !w.once(name) {
			continue
		}
		topic := fmt.Sprint("t", w.roll("topic of "+name, 3))
		m := producer.Message{ID: fmt.Sprint("m", n), Topic: topic, Payload: []byte(name)}
		if k := w.roll("key of "+name, 5); k < 2 {
			m.Key = fmt.Sprint("key", k)
		}
		if w.roll("poison "+name, 12) == 0 {
			h.poison[m.ID] = "refused"
		}
		w.after(w.between("when "+name, 0, 30*time.Second), func() {
			w.say("committed: %s, key %q", m.ID, m.Key)
			h.outbox.write(m)
			if p := h.workers[w.roll("wakes "+name, workers)].process; !p.dead && w.roll("woken "+name, 2) == 0 {
				p.wake()
			}
		})
	}
	h.disturb()
	w.run(w.began.Add(faulty))
	h.heal()
	clear(h.poison)
	replay := func() { // of dead rows, by somebody; a result that was under way may still name one dead
		for _, one := range h.outbox.rows {
			if one.state == outbox.Dead {
				one.state, one.Failures, one.due = outbox.Pending, 0, time.Now()
			}
		}
	}
	all := func() bool {
		return !slices.ContainsFunc(h.outbox.rows, func(r *row) bool { return !r.recorded })
	}
	for end := time.Now().Add(time.Hour); w.broken == nil && !all() && time.Now().Before(end); {
		replay()
		w.run(time.Now().Add(5 * time.Second))
	}
	for _, one := range h.outbox.rows {
		if !one.recorded {
			w.breaks(published, "row %s is %s an hour after the last fault", one.Message.ID, one.state)
		}
	}
}

// A rowPublisher is the broker of relays.
type rowPublisher struct{ p *process }

// Publish implements [producer.Publisher].
func (b rowPublisher) Publish(ctx context.Context, messages ...producer.Message) error {
	p := b.p
	w, h := p.world, p.history
	done, over := make(chan error, 1), make(chan struct{})
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.ID
	}
	name := p.name + " publishes " + strings.Join(ids, "+")
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
		for _, m := range messages {
			h.sends(p, m)
		}
		w.after(w.between(name, time.Millisecond, 20*time.Millisecond), func() {
			if p.dead || p.step("before "+name) {
				return
			}
			failed := &producer.PublishError{}
			for i, m := range messages {
				h.arrives(name, m, i, failed)
			}
			if w.happens("publisher hangs", name, 1500) {
				w.saw("publisher hangs")
				return
			}
			if p.step("after " + name) {
				return
			}
			if len(failed.Failures) > 0 {
				answer(failed)
				return
			}
			answer(nil)
		})
	})
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	w.arrive(name+" ~", func() { delete(p.open, over) })
	return err
}

// sends: a relay begins to publish a row.
func (h *history) sends(p *process, m producer.Message) {
	w := h.world
	at := slices.IndexFunc(h.outbox.rows, func(r *row) bool { return r.Message.ID == m.ID })
	one := h.outbox.rows[at]
	if one.by != p.name && time.Now().Before(one.ends) || one.by == "" {
		w.breaks(leasedOnly, "row %s is published by %s, and %q has it", m.ID, p.name, one.by)
	}
	if !bytes.Equal(m.Payload, one.Message.Payload) || m.Topic != one.Message.Topic {
		w.breaks(outputsKeep, "row %s is published with other content: %q", m.ID, m.Payload)
	}
	if one.recorded {
		w.breaks(copies, "row %s is published again although it is recorded", m.ID)
	}
	for _, before := range h.outbox.rows[:at] {
		if one.OrderKey != "" && before.OrderKey == one.OrderKey && !before.acked && !before.recorded {
			w.breaks(keepsOrder, "row %s is sent before %s of its key", m.ID, before.Message.ID)
		}
	}
}

// arrives: what the broker does with a row.
func (h *history) arrives(name string, m producer.Message, i int, failed *producer.PublishError) {
	w := h.world
	one := h.outbox.rows[slices.IndexFunc(h.outbox.rows, func(r *row) bool { return r.Message.ID == m.ID })]
	fail := func(err error, unknown bool) {
		failed.Failures = append(failed.Failures, producer.Failure{Index: i, ID: m.ID, Err: err, Unknown: unknown})
	}
	of := name + " of " + m.ID
	switch {
	case h.poison[m.ID] != "" || w.happens("broker refuses", of, 2500):
		one.refusals++
		fail(errRefused, false)
		w.say("%s: refused", of)
		return
	case w.happens("publish lost", of, 2500):
		fail(errNetwork, true)
		w.say("%s: lost", of)
		return
	}
	w.say("%s: published", of)
	if one.arrived++; one.arrived > 1 {
		w.saw("row published again")
		if one.excuses == 0 {
			w.breaks(copies, "row %s: copy %d has no explanation", m.ID, one.arrived)
		}
		one.excuses--
	}
	if w.happens("publish not answered", of, 2500) {
		fail(errNetwork, true)
		return
	}
	one.acked = true
}
