package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/pace"
)

var changeScript = redis.NewScript(source("record", "change"))

// Change implements [dedupstore.Inspector]. The record is written, by script, only if it is byte for byte what was
// decided about; else it is looked at again. After a lost reply go-redis may send the change once more, and the error
// may then refuse what has been done. What was counted beside a forgotten record is removed after it, not in the same
// step: Cluster may keep it on another node.
func (s *Store) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	name := s.name(seen.Key)
	fail := func(err error) error { return fmt.Errorf("redisstore: change %q: %w", name, err) }
	for {
		now, err := s.time(ctx, name)
		if err != nil {
			return fail(err)
		}
		looked, err := s.lookUp(ctx, []string{name})
		if err != nil {
			return fail(err)
		}
		found, err := looked[0].record()
		if err != nil {
			return fail(err)
		}
		found.Key = seen.Key
		if err := dedupstore.Refuse(c, seen, found, now); err != nil {
			return err
		}
		what, err := encodeChange(c)
		if err != nil {
			return err
		}
		reply, err := changeScript.Run(ctx, s.rdb, []string{name}, looked[0].raw.Val(), what).Result()
		switch {
		case err != nil:
			return fail(err)
		case reply == int64(0): // it changed, or a replica told what it was before
			if !pace.Sleep(ctx, 10*time.Millisecond) {
				return fail(context.Cause(ctx))
			}
			continue
		case reply != int64(1):
			return fail(&dedupstore.RecordError{Key: name, Problem: fmt.Sprint(reply)[1:]})
		}
		if _, forgotten := c.(dedupstore.Forget); !forgotten {
			return nil
		}
		if err := s.rdb.Del(ctx, name+beside).Err(); err != nil {
			return fmt.Errorf("redisstore: %q is forgotten, but not how many duplicates came of it: %w", name, err)
		}
		return nil
	}
}

// encodeChange is what the script gets.
func encodeChange(c dedupstore.Change) ([]byte, error) {
	switch c := c.(type) {
	case dedupstore.Forget:
		return []byte{'F'}, nil
	case dedupstore.Rerun:
		return []byte{'R'}, nil
	case dedupstore.Complete:
		return appendOutcome([]byte{'C', kindOf(&c.Outcome)}, &c.Outcome, false), nil
	}
	return nil, &dedupstore.InvalidError{Package: "redisstore", Field: "Change", Problem: fmt.Sprintf("is a %T", c)}
}

// time is what the clock says of the server that has a record.
func (s *Store) time(ctx context.Context, name string) (time.Time, error) {
	var node redis.Cmdable = s.rdb
	if s.cluster != nil {
		master, err := s.cluster.MasterForKey(ctx, name)
		if err != nil {
			return time.Time{}, err
		}
		node = master
	}
	return node.Time(ctx).Result()
}
