package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

// The handlers, and the durable consumers that feed them.
const (
	charge = "charge"
	notify = "notify"
)

// childEnv holds the options of a consumer, as JSON.
const childEnv = "ONCEMILL_PAYMENTS_CHILD"

// child is a consumer, and returns the exit status. It drains when its standard input ends: the process that started it
// wants it to, or has died. Tests tamper with the database.
func child(ctx context.Context, text string, tamper func(options, *database)) int {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	signal.Ignore(os.Interrupt) // the process that started it gets it, too
	ctx, drain := context.WithCancel(ctx)
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		drain()
	}()
	var o options
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.consume(ctx, tamper)
	}
	if err != nil {
		shop.Say(os.Stderr, "%v\n", err)
		return 1
	}
	return 0
}

// ready is what a consumer writes when it works.
const ready = "ready\n"

// consume charges and notifies until ctx ends.
func (o options) consume(ctx context.Context, tamper func(options, *database)) (err error) {
	db, err := openDatabase(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if tamper != nil {
		tamper(o, db)
	}
	b, closing, err := connect(o, "", nats.SetCustomDialer(losingDialer{}))
	if err != nil {
		return err
	}
	defer closing()
	b.pub = shop.ForgetTenth(b.pub)
	shop.Say(os.Stdout, ready)
	api := bank.NewClient(o.API, window)
	defer api.Close()
	ctx, drain := context.WithCancel(ctx)
	return shop.Each(context.WithoutCancel(ctx), 2, 2, func(_ context.Context, i int) error {
		defer drain() // if one breaks, the other ends too
		if i == 0 {
			return b.work(ctx, o, db.Inbox, charge, b.payments(), b.bookers(o, bookPayments(db, b.receipts())))
		}
		return b.work(ctx, o, db.Leased, notify, b.receipts(), b.callers(callAPI(api)))
	})
}

// A process is a consumer in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer   // closed: it drains
	leaves atomic.Bool // it is to end
	ended  chan struct{}
	err    error // of its end
}

// leave lets the process finish its work for so long, and then kills it (SIGKILL).
func (p *process) leave(within time.Duration) error {
	p.leaves.Store(true)
	if within > 0 {
		_ = p.stdin.Close() // fails only if it has ended
	}
	late := time.AfterFunc(within, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	<-p.ended
	return p.err
}

// A crew is the consumers of a run. It is safe for concurrent use.
type crew struct {
	o      options
	fail   context.CancelCauseFunc // is told of a process that ends, and was not to
	rng    *rand.Rand
	mu     sync.Mutex
	all    []*process
	killed int
}

// hire starts three consumers. They are killed when ctx ends.
func hire(ctx context.Context, o options, fail context.CancelCauseFunc) (*crew, error) {
	c := &crew{o: o, fail: fail, rng: rand.New(rand.NewPCG(o.Seed, 1))}
	for range 3 {
		p, err := c.start(ctx)
		if err != nil {
			c.killAll()
			return nil, err
		}
		c.all = append(c.all, p)
	}
	return c, nil
}

// start starts this program as a consumer, and waits until it works.
func (c *crew) start(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c.o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self), ended: make(chan struct{})}
	var stderr bytes.Buffer
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), childEnv+"="+string(text)), &stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	_, notReady := io.ReadFull(stdout, make([]byte, len(ready)))
	go func() {
		defer close(p.ended)
		if err := p.cmd.Wait(); err != nil || !p.leaves.Load() {
			p.err = errors.Join(fmt.Errorf("a consumer ended, and said %q", &stderr), err)
		}
		if !p.leaves.Load() {
			c.fail(p.err)
		}
	}()
	if notReady != nil {
		<-p.ended
		return nil, p.err
	}
	return p, nil
}

// kill kills consumers at random, and replaces each, until so many were killed in all.
func (c *crew) kill(ctx context.Context, inAll int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; c.killed < inAll; c.killed++ {
		if err := shop.Pause(ctx, time.Duration(20+c.rng.IntN(200))*time.Millisecond); err != nil {
			return err
		}
		i := c.rng.IntN(len(c.all))
		_ = c.all[i].leave(0)
		p, err := c.start(ctx)
		if err != nil {
			return err
		}
		c.all[i] = p
	}
	return nil
}

// dismiss lets all processes finish their work for so long: they must end well, and in time.
func (c *crew) dismiss(ctx context.Context, within time.Duration) error {
	return shop.Each(ctx, len(c.all), 3, func(_ context.Context, i int) error { return c.all[i].leave(within) })
}

func (c *crew) killAll() {
	for _, p := range c.all {
		_ = p.leave(0) // it says that it was killed
	}
}
