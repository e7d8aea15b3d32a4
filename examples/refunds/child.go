package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/sqlitestore"
	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

// lease is how long the key of an agent that died stays busy. It is short so that the example is.
const lease = 4 * time.Second

// openTool opens the tool for a process. All processes share the files in dir.
func openTool(ctx context.Context, dir, wrong string, orders map[string][]payment) (_ *tool, closing func() error, err error) {
	mistakes := map[string]mistake{
		"": {}, "reason in key": {reasonInKey: true}, "agent in key": {agentInKey: true}, "key of run": {keyOfRun: true},
	}
	b, err := openBank(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	db, err := sqliteoutbox.Open(ctx, filepath.Join(dir, "claims.db"))
	if err != nil {
		return nil, nil, errors.Join(err, b.db.Close())
	}
	closing = func() error { return errors.Join(db.Close(), b.db.Close()) }
	// The payments are in another database than the claims, so this is the leased store and not its Inbox.
	store, err := sqlitestore.New(db, sqlitestore.Config{})
	if err == nil {
		err = store.Migrate(ctx)
	}
	policy := oncemill.HighValue()
	policy.Lease, policy.Backoff.Min = lease, 100*time.Millisecond
	var guard *oncemill.Guard
	if err == nil {
		guard, err = oncemill.NewGuard(store, policy)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closing())
	}
	return &tool{guard: guard, bank: b, orders: orders, paid: func() {}, wrong: mistakes[wrong]}, closing, nil
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
	text, err := json.Marshal(childOrders{Dir: o.dir, Mistake: o.mistake, Ticket: t, Try: try, Dies: dies})
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
		say(os.Stderr, "refunds: agent: %v\n", err)
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
	o := &office{dir: c.Dir, mistake: c.Mistake, tool: tool}
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
