package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

// raw is the loop that franz-go's docs give for a group that commits by itself what it has handled.
func raw(ctx context.Context, j *task) (func() error, error) {
	cl, err := kgo.NewClient(append(j.reach, kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll())...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			fetches := cl.PollFetches(ctx)
			if ctx.Err() != nil {
				return
			}
			if err := fetches.Err(); err != nil {
				j.fail(err)
				return
			}
			fetches.EachRecord(func(*kgo.Record) { j.handle() })
			if err := cl.CommitUncommittedOffsets(context.WithoutCancel(ctx)); err != nil {
				j.fail(err)
				return
			}
			cl.AllowRebalance()
		}
	}()
	return func() error {
		cancel()
		<-ended
		cl.CloseAllowingRebalance()
		return nil
	}, nil
}
