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
	"time"

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
	defer func() { err = errors.Join(err, db.close(context.WithoutCancel(ctx), false)) }()
	if tamper != nil {
		tamper(o, db)
	}
	b, err := connect(o, true)
	if err != nil {
		return err
	}
	defer b.js.Conn().Close()
	b.pub = shop.ForgetTenth(b.pub)
	shop.Say(os.Stdout, ready)
	var cleaning sync.WaitGroup
	defer cleaning.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cleaning.Go(func() { _ = db.leased.RunCleaning(ctx) })
	client := newClient()
	defer client.CloseIdleConnections()
	notified := make(chan error, 1)
	go func() {
		defer stop()
		notified <- b.work(ctx, o, db.leased, notify, b.receipts(), callAPI(client, o.API))
	}()
	err = b.work(ctx, o, db.inbox, charge, b.payments(), bookPayment(db, b.receipts()))
	stop()
	return errors.Join(err, <-notified)
}

// A process is a consumer in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer     // closed: it drains
	stderr bytes.Buffer  // to be read once it has ended
	ended  chan struct{} // closed when it has ended
	err    error         // why, then
}

// start starts a process of this program, and waits until it works. It is killed when ctx ends.
func start(ctx context.Context, o options) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = &p.stderr
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
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	if notReady != nil {
		<-p.ended
		return nil, p.broken()
	}
	return p, nil
}

// broken returns why the process has ended, if it has, and nobody asked it to.
func (p *process) broken() error {
	select {
	case <-p.ended:
		return fmt.Errorf("a consumer has ended, and nobody asked it to: %w\n%s", p.err, &p.stderr)
	default:
		return nil
	}
}

// kill ends the process at once (SIGKILL), and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
}

// stop lets the process drain. It must end well, and in time.
func (p *process) stop() error {
	_ = p.stdin.Close() // fails only if it has ended
	late := time.AfterFunc(closeTime, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	if <-p.ended; p.err != nil {
		return fmt.Errorf("a consumer did not end well in %v: %w\n%s", closeTime, p.err, &p.stderr)
	}
	return nil
}

// A crew is the consumers of a run. It is safe for concurrent use.
type crew struct {
	o      options
	rng    *rand.Rand
	mu     sync.Mutex
	all    []*process
	killed int
}

// hire starts three consumers.
func hire(ctx context.Context, o options) (*crew, error) {
	c := &crew{o: o, rng: rand.New(rand.NewPCG(o.Seed, 1))}
	for range 3 {
		p, err := start(ctx, o)
		if err != nil {
			c.killAll()
			return nil, err
		}
		c.all = append(c.all, p)
	}
	return c, nil
}

// kill kills consumers at random, and replaces each, until so many were killed in all.
func (c *crew) kill(ctx context.Context, inAll int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; c.killed < inAll; c.killed++ {
		if err := shop.Pause(ctx, time.Duration(20+c.rng.IntN(200))*time.Millisecond); err != nil {
			return err
		}
		if err := c.broken(); err != nil {
			return err
		}
		i := c.rng.IntN(len(c.all))
		c.all[i].kill()
		p, err := start(ctx, c.o)
		if err != nil {
			return err
		}
		c.all[i] = p
	}
	return nil
}

// broken returns why a process has ended, if one has.
func (c *crew) broken() (err error) {
	for _, p := range c.all {
		err = errors.Join(err, p.broken())
	}
	return err
}

// dismiss lets all processes drain.
func (c *crew) dismiss(ctx context.Context) error {
	return shop.Each(ctx, len(c.all), len(c.all), func(_ context.Context, i int) error { return c.all[i].stop() })
}

func (c *crew) killAll() {
	for _, p := range c.all {
		p.kill()
	}
}
