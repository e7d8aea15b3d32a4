package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"

	"github.com/oncemill/oncemill/examples/internal/shop"
)

// An office is where agents work. It counts what happens.
type office struct {
	dir  string
	tool *tool

	calls, busy, later, deaths atomic.Int64
}

// day is the first time that a ticket is worked on.
func (o *office) day(ctx context.Context, t ticket) error {
	switch t.Kind {
	case twoAgents:
		return shop.Each(ctx, 2, 2, func(ctx context.Context, i int) error {
			if i == 0 {
				return o.ask(ctx, t, 0)
			}
			return o.send(ctx, t, 1, false)
		})
	case dies:
		return o.send(ctx, t, 0, true)
	case atNight:
		return o.insist(ctx, t, 0, true)
	}
	return errors.Join(o.ask(ctx, t, 0), o.ask(ctx, t, 1))
}

// morning is when somebody looks at each ticket again.
func (o *office) morning(ctx context.Context, t ticket) error { return o.ask(ctx, t, 2) }

// ask is an agent: it calls the tool, in other words each time, until all is refunded.
func (o *office) ask(ctx context.Context, t ticket, try int) error {
	return o.insist(ctx, t, try, false)
}

// insist calls the tool until all is refunded. At night an agent calls until it is told what remains, and leaves it for
// the morning.
func (o *office) insist(ctx context.Context, t ticket, try int, night bool) error {
	for n := range 100 {
		a, err := o.once(ctx, t, try+n)
		switch {
		case err != nil:
			return err
		case a.Again == 0 && night:
			return fmt.Errorf("%s: a voucher was refunded at night: %s", t.ID, a.Says)
		case a.Again == 0, night && a.Known:
			return nil
		}
		if err := shop.Pause(ctx, a.Again); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: an agent gave up", t.ID)
}

// once calls the tool once.
func (o *office) once(ctx context.Context, t ticket, try int) (answer, error) {
	o.calls.Add(1)
	c := t.call(try)
	if o.tool.wrong == agentInKey {
		c.Conversation += fmt.Sprint(" of agent ", try)
	}
	a, err := o.tool.refund(ctx, c)
	switch {
	case err != nil || a.Again == 0:
	case a.Busy:
		o.busy.Add(1)
	default:
		o.later.Add(1)
	}
	return a, err
}

// childEnv holds the orders of an agent that is a process of its own.
const childEnv = "ONCEMILL_REFUNDS_AGENT"

// childOrders are what an agent in a process of its own is to do.
type childOrders struct {
	Dir     string
	Mistake string
	Ticket  ticket
	Try     int
	Dies    bool
}

// send lets an agent work in a process of its own. One that dies is meant to.
func (o *office) send(ctx context.Context, t ticket, try int, dies bool) error {
	text, err := json.Marshal(childOrders{Dir: o.dir, Mistake: o.tool.wrong, Ticket: t, Try: try, Dies: dies})
	if err != nil {
		return err
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	o.calls.Add(1)
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	err = cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case dies && exited && !exit.Exited(): // by a signal
		o.deaths.Add(1)
		return nil
	case dies && err == nil:
		return errors.New("an agent that was to die did not")
	case err != nil:
		return fmt.Errorf("an agent in a process of its own: %w", err)
	}
	return nil
}

// child is such an agent. It returns the exit status of the process.
func child(ctx context.Context, text string) int {
	var c childOrders
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.work(ctx)
	}
	if err != nil {
		shop.Say(os.Stderr, "refunds: agent: %v\n", err)
		return 1
	}
	return 0
}

func (c childOrders) work(ctx context.Context) error {
	tool, closing, err := openTool(ctx, c.Dir, c.Mistake, orders([]ticket{c.Ticket}))
	if err != nil {
		return err
	}
	if c.Dies {
		tool.paid = die
	}
	o := &office{dir: c.Dir, tool: tool}
	return errors.Join(o.ask(ctx, c.Ticket, c.Try), closing())
}

// die ends the process at once, as a crash does: nothing is settled, closed or said.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {} // until the signal is there
}
