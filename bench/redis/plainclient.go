package main

import (
	"context"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed plain_claim.lua
	plainClaim string
	//go:embed plain_finish.lua
	plainFinish string
)

// What a plain record holds after its owner: a digest, a traceparent, a holder and a lease, packed as small as the
// store's. Its outcome says how long the run took.
var plainRest = "fsha1" + strings.Repeat("d", 16) + "t" + strings.Repeat("t", 25) + "w16" + holder + "L0000000030000"

const plainTook = "k00000005"

// plainClient is what a user would write with go-redis: the same work by two scripts, one command at a time.
type plainClient struct {
	rdb           *redis.Client
	do            func(context.Context, redis.Cmder) error
	claim, finish string // digests of the scripts
	closing       func() error
}

// openPlain returns go-redis with a connection for every goroutine.
func openPlain(addr string) (client, error) {
	rdb := redis.NewClient(options(addr))
	return newPlain(rdb, rdb.Process, rdb.Close)
}

// openAuto returns the same commands through go-redis's own pipelining.
func openAuto(addr string) (client, error) {
	rdb := redis.NewClient(options(addr))
	auto, err := rdb.AutoPipeline()
	if err != nil {
		return nil, err
	}
	return newPlain(rdb, auto.Process, func() error { return errors.Join(auto.Close(), rdb.Close()) })
}

func newPlain(rdb *redis.Client, do func(context.Context, redis.Cmder) error, closing func() error) (client, error) {
	ctx := context.Background()
	claim, err := rdb.ScriptLoad(ctx, plainClaim).Result()
	if err != nil {
		return nil, err
	}
	finish, err := rdb.ScriptLoad(ctx, plainFinish).Result()
	return &plainClient{rdb, do, claim, finish, closing}, err
}

func (c *plainClient) process(ctx context.Context, m message) (time.Duration, error) {
	owner, name := m.owner[:8], m.name()
	begun := time.Now()
	claim := redis.NewCmd(ctx, "evalsha", c.claim, 1, name, owner+plainRest, (lease + window).Milliseconds())
	err := c.do(ctx, claim)
	took := time.Since(begun)
	if err != nil {
		return 0, err
	}
	fence, ok := claim.Val().(string)
	if !ok {
		return 0, errState(m, "taken")
	}
	finish := redis.NewCmd(ctx, "evalsha", c.finish, 1, name, fence+owner, window.Milliseconds(), plainTook)
	if err := c.do(ctx, finish); err != nil {
		return 0, err
	}
	if finish.Val() != int64(1) {
		return 0, errState(m, "lost")
	}
	return took, nil
}

func (c *plainClient) check(ctx context.Context, m message) error {
	record, err := c.rdb.Get(ctx, m.name()).Result()
	if err == nil && !strings.HasPrefix(record, "1Ds") {
		err = errState(m, record)
	}
	return err
}

func (c *plainClient) close() error { return c.closing() }
