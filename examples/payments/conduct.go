package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// closeTime is how long the end may take.
const closeTime = 30 * time.Second

// conduct plays everything, and reports whether the books balance. What it says to people goes to out.
func conduct(ctx context.Context, o options, stdout, out io.Writer) (balanced bool, err error) {
	begun := time.Now()
	dir, err := os.MkdirTemp("", "oncemill-payments-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	o.journal = filepath.Join(dir, "journal")
	if o.embedded {
		srv, err := startNATS(dir)
		if err != nil {
			return false, err
		}
		defer stopNATS(srv)
		o.nats, o.sqlite = srv.ClientURL(), filepath.Join(dir, "payments.db")
	}
	say(out, "%s\n", o.describe())
	s, err := openStage(ctx, o)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = errors.Join(err, s.close(ctx))
	}()
	b, err := s.play(ctx, out)
	if err != nil {
		return false, err
	}
	if err := b.print(stdout, o.out); err != nil {
		return false, err
	}
	say(out, "seed %d, %.1f s\n", o.seed, time.Since(begun).Seconds())
	return b.Balance(), nil
}

// describe says what the run stands on.
func (o options) describe() string {
	outcomes := "Redis"
	if o.redis == "" {
		outcomes = "the database"
	}
	switch {
	case o.embedded:
		return "-embedded: everything is kept in SQLITE INSTEAD OF POSTGRESQL, and NATS runs in this process; both in a temporary folder, which is removed at the end"
	case o.sqlite != "":
		return "everything is kept in SQLite, notify's outcomes in " + outcomes
	}
	return "everything is kept in PostgreSQL, notify's outcomes in " + outcomes
}

// A stage is what a run is played on.
type stage struct {
	options
	db     database
	broker *broker
}

func openStage(ctx context.Context, o options) (*stage, error) {
	if err := o.checkRedis(ctx); err != nil {
		return nil, err
	}
	s := &stage{options: o}
	var err error
	if s.db, err = openDatabase(ctx, o); err != nil {
		return nil, err
	}
	before, err := s.db.ledger(ctx)
	if err != nil {
		return nil, errors.Join(err, s.db.close(context.WithoutCancel(ctx), !o.keep))
	}
	if len(before.payments) > 0 { // the books would take them for payments that nobody has sent; they are not this run's to remove
		return nil, errors.Join(errors.New("the database has payments of another run: want a new file for -sqlite, or another -run"),
			s.db.close(context.WithoutCancel(ctx), false))
	}
	own := o
	own.lose = 0
	if s.broker, err = connect(ctx, own); err != nil {
		return nil, errors.Join(err, s.db.close(context.WithoutCancel(ctx), !o.keep))
	}
	return s, nil
}

// close removes what the run has made, unless it is to be kept.
func (s *stage) close(ctx context.Context) error {
	defer s.broker.close()
	var err error
	if !s.keep {
		err = s.broker.remove(ctx)
	}
	return errors.Join(err, s.db.close(ctx, !s.keep))
}

// play starts all processes, sends the payments, kills consumers, waits until all is done, and closes the books.
func (s *stage) play(ctx context.Context, out io.Writer) (b Books, err error) {
	c, err := hire(ctx, s.options)
	if err != nil {
		return b, err
	}
	defer c.killAll()
	all := plan(s.options)
	say(out, "%d payments by HTTP; %d times a consumer is killed\n", len(all), s.kills)
	l := newLoad(c.service, all)
	l.repeat = s.broker.repeat
	var kills atomic.Int64
	l.gate = s.gate(&kills)
	if err := s.storm(ctx, c, l, &kills, out); err != nil {
		return b, err
	}
	if err := s.settled(ctx, c, out); err != nil {
		return b, err
	}
	if err := c.dismiss(); err != nil {
		return b, err
	}
	if b, err = s.closeBooks(ctx, all); err != nil {
		return b, err
	}
	b.Requests, b.Repeated, b.Republished, b.Kills = int(l.requests.Load()), int(l.again.Load()), int(l.repeats.Load()), int(kills.Load())
	return b, nil
}

// tick is how often conditions are looked at.
const tick = 5 * time.Millisecond

// gate spreads the payments over the kills, so that each kill meets some.
func (s *stage) gate(kills *atomic.Int64) func(context.Context, int) bool {
	return func(ctx context.Context, i int) bool {
		return await(ctx, func() bool { return s.kills == 0 || i*s.kills <= s.payments*(int(kills.Load())+1) })
	}
}

// due waits until enough payments have an answer for the next kill.
func (s *stage) due(ctx context.Context, l *load, kills *atomic.Int64) bool {
	return await(ctx, func() bool { return int(l.done.Load())*s.kills >= s.payments*int(kills.Load()) })
}

// await waits for a condition, and reports false if ctx ended before.
func await(ctx context.Context, met func() bool) bool {
	for !met() {
		if !pause(ctx, tick) {
			return false
		}
	}
	return ctx.Err() == nil
}

// storm sends payments and kills consumers, side by side.
func (s *stage) storm(ctx context.Context, c *crew, l *load, kills *atomic.Int64, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
	both.Go(func() {
		if err := l.run(ctx); err != nil {
			cancel(err)
		}
	})
	both.Go(func() {
		said := time.Now()
		err := c.rage(ctx, s.kills, s.seed, func() bool { return s.due(ctx, l, kills) }, func() {
			n := kills.Add(1)
			if time.Since(said) > 5*time.Second {
				said = time.Now()
				say(out, "%d of %d payments have an answer; %d processes killed\n", l.done.Load(), s.payments, n)
			}
		})
		if err != nil {
			cancel(err)
		}
	})
	both.Wait()
	return context.Cause(ctx)
}

// shared lets several goroutines write.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

// Write implements io.Writer.
func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
