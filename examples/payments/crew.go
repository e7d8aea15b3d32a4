package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// A crew is the processes of a run.
type crew struct {
	options options
	all     []*process // the consumers last
	victims int        // how many of the last are killed
	service string     // where it listens
}

// consumers are the processes that are killed: two of each kind.
var consumers = []string{roleCharge, roleNotify, roleCharge, roleNotify}

// hire starts all processes, and waits until they work.
func hire(ctx context.Context, o options) (_ *crew, err error) {
	c := &crew{options: o, victims: len(consumers)}
	defer func() {
		if err != nil {
			c.killAll()
		}
	}()
	api, err := c.start(roleAPI)
	if err != nil {
		return nil, err
	}
	service, err := c.start(roleService, roleRelay)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(api.await(ctx), service.await(ctx)); err != nil {
		return nil, err
	}
	c.options.api, c.service = "http://"+api.where, "http://"+service.where+"/payments"
	for _, role := range consumers {
		if _, err := c.start(role); err != nil {
			return nil, err
		}
	}
	for _, p := range c.all {
		if err := p.await(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *crew) start(roles ...string) (*process, error) {
	p, err := start(c.options, roles...)
	if err == nil {
		c.all = append(c.all, p)
	}
	return p, err
}

// rage kills consumers at random, and replaces each at once. Before each it calls due, which waits, or reports that it is
// over; and killed after each.
func (c *crew) rage(ctx context.Context, kills int, seed uint64, due func() bool, killed func()) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range kills {
		i := len(c.all) - c.victims + rng.IntN(c.victims)
		if err := c.all[i].await(ctx); err != nil {
			return err
		}
		if !due() || !pause(ctx, time.Duration(20+rng.IntN(200))*time.Millisecond) {
			return ctx.Err()
		}
		if err := c.broken(); err != nil {
			return err
		}
		c.all[i].kill()
		p, err := start(c.options, c.all[i].roles...)
		if err != nil {
			return err
		}
		c.all[i] = p
		killed()
	}
	return nil
}

// broken returns why a process has ended, if one has.
func (c *crew) broken() error {
	for _, p := range c.all {
		select {
		case <-p.ended:
			return p.broke()
		default:
		}
	}
	return nil
}

// dismiss lets all processes drain.
func (c *crew) dismiss() error {
	errs := make([]error, len(c.all))
	var all sync.WaitGroup
	for i, p := range c.all {
		all.Go(func() { errs[i] = p.stop() })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *crew) killAll() {
	for _, p := range c.all {
		p.kill()
	}
}
