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

	calls, again, deaths atomic.Int64
}

// day is the first time that a ticket is worked on.
func (o *office) day(ctx context.Context, t ticket) error {
	switch t.Kind {
	case twoAgents:
		return shop.Each(ctx, 2, 2, func(ctx context.Context, i int) error { return o.ask(ctx, t, i) })
	case dies:
		return o.sendToDeath(ctx, t)
	case atNight: // the agent calls until it is told what remains, and leaves that for the morning
		return shop.Poll(ctx, closedPause, func() (bool, error) {
			a, err := o.once(ctx, t, 0)
			if err == nil && a.Again == 0 {
				err = fmt.Errorf("%s: a voucher was refunded at night: %s", t.ID, a.Says)
			}
			return a.Known, err
		})
	}
	return errors.Join(o.ask(ctx, t, 0), o.ask(ctx, t, 1))
}

// morning is when somebody looks at each ticket again.
func (o *office) morning(ctx context.Context, t ticket) error { return o.ask(ctx, t, 2) }

// ask is an agent: it calls the tool, in other words each time, until all is refunded.
func (o *office) ask(ctx context.Context, t ticket, try int) error {
	for n := range 100 {
		a, err := o.once(ctx, t, try+n)
		if err != nil || a.Again == 0 {
			return err
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
	if err == nil && a.Again > 0 {
		o.again.Add(1)
	}
	return a, err
}

// childEnv holds the orders of an agent that is a process of its own, as JSON.
const childEnv = "ONCEMILL_REFUNDS_AGENT"

// childOrders are what an agent is to do that dies.
type childOrders struct {
	Dir    string
	Ticket ticket
}

// sendToDeath lets an agent work in a process of its own, which dies after its first payment.
func (o *office) sendToDeath(ctx context.Context, t ticket) error {
	text, err := json.Marshal(childOrders{o.dir, t})
	if err != nil {
		return err
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	err = cmd.Run()
	if exit, exited := errors.AsType[*exec.ExitError](err); !exited || exit.Exited() { // not by a signal
		return errors.Join(errors.New("an agent that was to die did not"), err)
	}
	o.deaths.Add(1)
	return nil
}

// child is such an agent. It returns the exit status of the process, if it lives.
func child(ctx context.Context, text string) int {
	var c childOrders
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.work(ctx)
	}
	shop.Say(os.Stderr, "refunds: agent: %v\n", err)
	return 1
}

func (c childOrders) work(ctx context.Context) error {
	tool, closing, err := openTool(ctx, c.Dir, "", orders([]ticket{c.Ticket}))
	if err != nil {
		return err
	}
	tool.paid = func() { // the process ends at once, as in a crash: nothing is settled, closed or said
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // until the signal is there
	}
	return errors.Join((&office{tool: tool}).ask(ctx, c.Ticket, 0), closing())
}
