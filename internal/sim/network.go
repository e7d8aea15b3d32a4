package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var (
	errNetwork = errors.New("sim: connection lost")
	errRefused = errors.New("sim: the server refuses")
	errDead    = errors.New("sim: the process is dead")
)

// What a dead process gets, so that its goroutines end.
func deadError(kind string) error {
	if kind == "claim" {
		return &dedupstore.InvalidError{Package: "sim", Field: "process", Problem: "is dead"}
	}
	return dedupstore.ErrClaimLost
}

// exchange sends operations to the server and waits for the answers. Each operation has a fate of its own, also within
// a batch.
func exchange[O, R any](
	ctx context.Context, c *conn, kind string, ops []O, id func(O) string, apply func(string, O) R,
	failed func(error) R, text func(O, R) string,
) []R {
	results := make([]R, len(ops))
	if err := ctx.Err(); err != nil {
		for i := range results {
			results[i] = failed(err)
		}
		return results
	}
	if c.process == nil {
		c.server.mu.Lock()
		defer c.server.mu.Unlock()
		for i := range ops {
			results[i] = apply("", ops[i])
		}
		return results
	}
	ops = slices.Clone(ops) // the caller may use the slice again while copies are still under way
	p, w := c.process, c.process.world
	answered, left, done := make([]bool, len(ops)), len(ops), make(chan struct{})
	over := false
	var gaveUp *event
	answer := func(i int, r R) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if over || answered[i] {
			return
		}
		results[i], answered[i] = r, true
		if left--; left == 0 {
			over = true
			close(done)
		}
	}
	release := func() {
		for i := range ops {
			answer(i, failed(deadError(kind)))
		}
	}
	names := make([]string, len(ops))
	ids := make([]string, len(ops))
	for i, op := range ops {
		ids[i] = id(op)
		names[i] = ids[i] + traceOf(op)
	}
	order := make([]int, len(ops))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(names[a], names[b]), cmp.Compare(fenceOf(ops[a]), fenceOf(ops[b])))
	})
	w.arrive(fmt.Sprint(p.name, " ", kind, " ", names[order[0]]), func() {
		if p.dead {
			release()
			return
		}
		p.open[done] = release
		for _, i := range order {
			name := w.next(p.name + " " + kind + " " + names[i])
			p.send(kind, ids[i], name, func(late bool) func() {
				r := apply(p.name, ops[i])
				if text := text(ops[i], r); text != "" {
					w.say("%s%s: %s", name, map[bool]string{true: " (late copy)"}[late], text)
				}
				return func() { answer(i, r) }
			}, func(err error) {
				answer(i, failed(err))
			})
		}
		if len(order) > 1 {
			w.saw("batch of operations")
		}
		// A client gives up shortly before its context ends: contexts that were made together end together, and then
		// chance decides who comes first.
		if deadline, ok := ctx.Deadline(); ok {
			early := w.between("gives up "+p.name+names[order[0]], time.Microsecond, 2*time.Millisecond)
			gaveUp = w.after(time.Until(deadline)-early, func() {
				for i := range ops {
					answer(i, failed(context.DeadlineExceeded))
				}
			})
		}
	})
	select {
	case <-done:
	case <-ctx.Done():
		w.mu.Lock()
		if !over {
			over = true
			for i := range results {
				if !answered[i] {
					results[i] = failed(ctx.Err())
				}
			}
		}
		w.mu.Unlock()
	}
	w.arrive(p.name+" ~", func() {
		delete(p.open, done)
		if gaveUp != nil {
			gaveUp.off = true
		}
	})
	return results
}

// traceOf tells claims of one key apart: by their deliveries.
func traceOf(op any) string {
	if r, ok := op.(dedupstore.Request); ok && len(r.Trace) > 15 {
		slot, _ := strconv.ParseUint(r.Trace[5:9], 16, 16)
		count, _ := strconv.ParseUint(r.Trace[9:13], 16, 16)
		return fmt.Sprintf(" (%d.%d)", slot, count)
	}
	return ""
}

// fenceOf tells the other operations of one key apart.
func fenceOf(op any) uint64 {
	switch op := op.(type) {
	case dedupstore.Extension:
		return op.Claim.Fence
	case dedupstore.Settling:
		return op.Claim.Fence
	}
	return 0
}

// transactions are what databases do at most once: that of an inbox, and those of an outbox.
var transactions = []string{"commit", "lease", "record"}

// send decides what becomes of one operation: apply makes it at the server, and returns what brings the answer.
func (p *process) send(kind, id, name string, apply func(late bool) (answer func()), fail func(error)) {
	w := p.world
	way := func(n string) time.Duration {
		return w.between(n+name, 50*time.Microsecond, 2*time.Millisecond)
	}
	there, back := way("there "), way("back ")
	arrives := func(d time.Duration, late bool, answers bool) {
		w.after(d, func() {
			if !p.dead && p.step("before "+name) && w.roll("arrives "+name, 2) == 0 {
				delete(p.history.server.locked, keyOf(id))
				p.leave() // also one whose commit hung
				return    // else it is on its way
			}
			answer := apply(late)
			if !answers {
				return
			}
			w.after(back, func() {
				if p.dead || p.step("answer of "+name) {
					return
				}
				answer()
			})
		})
	}
	refused := func(err error, what string) {
		w.after(there+back, func() {
			if !p.dead {
				w.say("%s: %s", name, what)
				fail(err)
			}
		})
	}
	switch {
	case w.down || p.cut:
		if w.roll("how "+name, 2) == 0 {
			refused(errNetwork, "connection lost")
		}
	case w.happens("request lost", name, 800):
		if w.roll("how "+name, 2) == 0 {
			refused(errNetwork, "request lost")
		}
	case w.happens("reply lost", name, 900) || kind == "commit" && w.happens("answer to the commit lost", name, 4000):
		if kind == "commit" {
			w.saw("answer to a commit lost")
		}
		w.saw("reply lost")
		arrives(there, false, false)
		if w.roll("how "+name, 2) == 0 {
			refused(errNetwork, "reply lost")
		}
	case w.happens("request late", name, 600) || kind == "commit" && w.happens("commit hangs", name, 4000):
		w.saw("request late")
		if kind == "commit" {
			w.saw("commit hangs")
			p.history.server.locked[keyOf(id)] = struct{}{}
		}
		arrives(w.between("late "+name, 500*time.Millisecond, 9*time.Second), false, true)
	case kind == "settle" && w.happens("settlement late", name, 3500):
		arrives(w.between("late "+name, 3*time.Second, 7*time.Second), false, true)
	case w.happens("reply late", name, 500):
		back = w.between("late "+name, 200*time.Millisecond, 5*time.Second)
		arrives(there, false, true)
	case !slices.Contains(transactions, kind) && w.happens("request twice", name, 800):
		w.saw("request twice")
		arrives(there, false, true)
		arrives(there+w.between("late "+name, time.Millisecond, 9*time.Second), true, false)
	case w.happens("refused", name, 600):
		refused(errRefused, "refused")
	default:
		arrives(there, false, true)
	}
}

func sayClaim(r dedupstore.ClaimResult) string {
	if r.Err != nil {
		return r.Err.Error()
	}
	a := r.Answer
	s := string(a.Status) + " from " + string(a.Found)
	switch a.Status {
	case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
		s += fmt.Sprintf(", fence %d, attempt %d", a.Claim.Fence, a.Claim.Attempt)
	case dedupstore.Busy:
		s += fmt.Sprintf(", wait %v", a.Wait)
	}
	if a.Outcome.Kind != "" {
		s += ", " + string(a.Outcome.Kind)
	}
	return s
}

func saySettlement(s dedupstore.Settlement) string {
	switch s := s.(type) {
	case dedupstore.Finish:
		return fmt.Sprintf("finish %s with %d messages", s.Outcome.Kind, len(s.Outcome.Produced))
	case dedupstore.Release:
		return fmt.Sprintf("release for %v, uncounted %t", s.Delay, s.Uncounted)
	}
	return strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", s), "dedupstore."))
}
