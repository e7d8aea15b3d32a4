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

// What consumers do.
const (
	roleCharge = "charge"
	roleNotify = "notify"
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

// consume does what the consumer's role is until ctx ends.
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
	shop.Say(os.Stdout, "ready\n")
	if o.Role == roleNotify {
		return notify(ctx, o, b, db)
	}
	var cleaning sync.WaitGroup
	defer cleaning.Wait()
	cleaning.Go(func() { _ = db.leased.RunCleaning(ctx) })
	return charge(ctx, o, b, db)
}

// A process is a consumer in a process of its own.
type process struct {
	role   string
	cmd    *exec.Cmd
	stdin  io.Closer     // closed: it drains
	stderr bytes.Buffer  // to be read once it has ended
	ready  chan struct{} // closed when it works
	ended  chan struct{} // closed when it has ended
	err    error         // why, then
}

// start starts a process of this program. It does not wait until that works.
func start(o options, role string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.Role = role
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{role: role, ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), self) // it ends when it is told to
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
	go func() {
		if n, _ := io.ReadFull(stdout, make([]byte, len("ready\n"))); n > 0 {
			close(p.ready)
		}
		_, _ = io.Copy(io.Discard, stdout)
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// await waits until the process works.
func (p *process) await(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return p.broken()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// broken returns why the process has ended, if it has, and nobody asked it to.
func (p *process) broken() error {
	select {
	case <-p.ended:
		return fmt.Errorf("a process that is to %s has ended, and nobody asked it to: %w\n%s", p.role, p.err, &p.stderr)
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
		return fmt.Errorf("a process that is to %s did not end well in %v: %w\n%s", p.role, closeTime, p.err, &p.stderr)
	}
	return nil
}

// A crew is the consumers of a run.
type crew []*process

// hire starts two processes of each kind, and waits until they work.
func hire(ctx context.Context, o options) (c crew, err error) {
	for _, role := range []string{roleCharge, roleNotify, roleCharge, roleNotify} {
		p, err := start(o, role)
		if err != nil {
			c.killAll()
			return nil, err
		}
		c = append(c, p)
	}
	for _, p := range c {
		if err := p.await(ctx); err != nil {
			c.killAll()
			return nil, err
		}
	}
	return c, nil
}

// rage kills consumers at random, each when it is due, replaces it at once, and says so.
func (c crew) rage(ctx context.Context, o options, due func() (bool, error), killed func()) error {
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	for range o.Kills {
		victim := &c[rng.IntN(len(c))]
		if err := (*victim).await(ctx); err != nil {
			return err
		}
		if err := shop.Poll(ctx, tick, due); err != nil {
			return err
		}
		if err := shop.Pause(ctx, time.Duration(20+rng.IntN(200))*time.Millisecond); err != nil {
			return err
		}
		if err := c.broken(); err != nil {
			return err
		}
		(*victim).kill()
		p, err := start(o, (*victim).role)
		if err != nil {
			return err
		}
		*victim = p
		killed()
	}
	return nil
}

// broken returns why a process has ended, if one has.
func (c crew) broken() (err error) {
	for _, p := range c {
		err = errors.Join(err, p.broken())
	}
	return err
}

// dismiss lets all processes drain.
func (c crew) dismiss() error {
	return shop.Each(context.Background(), len(c), len(c), func(_ context.Context, i int) error { return c[i].stop() })
}

func (c crew) killAll() {
	for _, p := range c {
		p.kill()
	}
}
