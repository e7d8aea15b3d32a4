package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// An office is where agents work.
type office struct {
	dir     string
	mistake string
	tool    *tool
	counts
}

// counts are of what happened.
type counts struct{ calls, busy, later, deaths atomic.Int64 }

// work lets agents work on tickets, and closes the books.
func work(ctx context.Context, tickets int, mistake string) (_ Books, err error) {
	dir, err := os.MkdirTemp("", "oncemill-refunds-")
	if err != nil {
		return Books{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	planned := plan(tickets)
	tool, closeTool, err := openTool(ctx, dir, mistake, orders(planned))
	if err != nil {
		return Books{}, err
	}
	defer func() { err = errors.Join(err, closeTool()) }()
	o := &office{dir: dir, mistake: mistake, tool: tool}
	if err := each(ctx, planned, o.day); err != nil {
		return Books{}, err
	}
	if err := tool.bank.open(ctx); err != nil {
		return Books{}, err
	}
	if err := each(ctx, planned, o.morning); err != nil {
		return Books{}, err
	}
	return closeBooks(ctx, planned, tool.bank, &o.counts)
}

// atOnce is how many tickets are worked on at once.
const atOnce = 8

// each lets agents work on all tickets.
func each(ctx context.Context, tickets []ticket, agent func(context.Context, ticket) error) error {
	room := make(chan struct{}, atOnce)
	errs := make([]error, len(tickets))
	var all sync.WaitGroup
	for i, t := range tickets {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			if err := agent(ctx, t); err != nil {
				errs[i] = fmt.Errorf("%s: %w", t.ID, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// day is the first time that a ticket is worked on.
func (o *office) day(ctx context.Context, t ticket) error {
	switch t.Kind {
	case twoAgents:
		var second error
		var agents sync.WaitGroup
		agents.Go(func() { second = o.send(ctx, t, 1, false) })
		first := o.ask(ctx, t, 0)
		agents.Wait()
		return errors.Join(first, second)
	case dies:
		return o.send(ctx, t, 0, true)
	case atNight:
		return o.night(ctx, t)
	}
	return errors.Join(o.ask(ctx, t, 0), o.ask(ctx, t, 1))
}

// night is when an agent asks until it is told what remains, and leaves it for the morning.
func (o *office) night(ctx context.Context, t ticket) error {
	for range patience {
		a, err := o.once(ctx, t, 0)
		switch {
		case err != nil:
			return err
		case a.Again == 0:
			return fmt.Errorf("a voucher was refunded at night: %s", a.Says)
		case a.Known:
			return nil
		}
		if err := pause(ctx, a.Again); err != nil {
			return err
		}
	}
	return errImpatient
}

// morning is when somebody looks at each ticket again.
func (o *office) morning(ctx context.Context, t ticket) error { return o.ask(ctx, t, 2) }

// once calls the tool once.
func (o *office) once(ctx context.Context, t ticket, try int) (answer, error) {
	o.calls.Add(1)
	a, err := o.tool.refund(ctx, t.callOf(o.tool.wrong, try))
	switch {
	case err != nil || a.Again == 0:
	case a.Busy:
		o.busy.Add(1)
	default:
		o.later.Add(1)
	}
	return a, err
}

// patience is how often an agent asks again.
const patience = 100

// ask is an agent: it calls the tool, in other words each time, until all is refunded.
func (o *office) ask(ctx context.Context, t ticket, try int) error {
	for n := range patience {
		a, err := o.once(ctx, t, try+n)
		if err != nil || a.Again == 0 {
			return err
		}
		if err := pause(ctx, a.Again); err != nil {
			return err
		}
	}
	return errImpatient
}

var errImpatient = errors.New("an agent gave up")

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// callOf is call, with the mistake of agents that share nothing.
func (t ticket) callOf(m mistake, try int) toolCall {
	c := t.call(try)
	if m.agentInKey {
		c.Conversation += fmt.Sprint(" of agent ", try)
	}
	return c
}
