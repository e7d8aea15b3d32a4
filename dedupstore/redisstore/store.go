package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/batch"
)

// Store is a [dedupstore.Store] in Redis, and a [dedupstore.Checker] and [dedupstore.Inspector]. It is safe for
// concurrent use. With a client that does not heed contexts it starts goroutines, which end when nothing is under way;
// [Store.Close] waits for them. The caller closes the client.
type Store struct {
	rdb        redis.UniversalClient
	config     Config
	ready      atomic.Bool // the server has been looked at
	scripts    scripts
	plain      atomic.Bool // the server can make plain claims
	known      atomic.Bool // most of the last claims were of keys that only a script can claim
	barred     atomic.Bool // a script was forbidden, and none has claimed anything since
	claimed    claimed     // by this store, and not touched since
	barrier    barrier
	deaf       bool  // the client may wait for the network although the context has ended
	clock      clock // of the server; a cluster has many
	background batch.Background
	rounds     chan *round // for the next calls

	cluster *redis.ClusterClient // nil: a single server
	loaded  atomic.Bool          // the cluster's layout has been seen: looking at it asks nobody any more
}

// scripts are the scripts of the protocol; tests put broken ones in their place.
type scripts struct{ claim, extend, finish, release, published *script }

var allScripts = scripts{claimScript, extendScript, finishScript, releaseScript, publishedScript}

// New returns a store that uses the client: a [redis.Client] of a single server or of Sentinel, or a
// [redis.ClusterClient]. It refuses nil, and a [redis.Ring], which sends a key to another server when one is down and
// so forgets its owner. It does not connect: Redis may still be down. The error is a [*dedupstore.InvalidError] that
// names what is wrong.
func New(rdb redis.UniversalClient, c Config) (*Store, error) {
	c = c.withDefaults()
	if err := c.validate(rdb); err != nil {
		return nil, err
	}
	s := &Store{rdb: rdb, config: c, scripts: allScripts, rounds: make(chan *round, keptRounds)}
	s.ready.Store(c.SkipCheck)
	t, known := timeoutsOf(rdb)
	s.barrier, s.deaf = barrier{c.Replicas, t.replicas()}, !known || t.deaf()
	s.cluster, _ = rdb.(*redis.ClusterClient)
	return s, nil
}

// Close waits until no operation of the store is under way. Call it after the last operation. An operation whose caller
// has gone may take as long as the client waits for the network: without end, where its timeouts are off. Close does
// not close the client. If you close that before, waiting operations end.
func (s *Store) Close() { s.background.Wait() }

// Claim implements [dedupstore.Store]. It sends pipelines of at most 256 claims, and further ones for keys that are
// known and not done. While most are, as when a process was killed, it asks the script at once. Before the first claim
// it calls Check, unless the config says otherwise. While the server is unfit or down, claims fail, and the next one
// looks again.
//
// With Config.Replicas a run that too few replicas know is not granted: [dedupstore.ErrNotDurable]. Claim waits for the
// replicas even if the context ends, for at most half a second longer than they have. It may have to give the claim
// back.
//
// A first claim may travel for a while before it is written. Its record may then be forgotten sooner, by a tenth of
// that time.
func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	results := make([]dedupstore.ClaimResult, len(requests))
	round := s.begin(len(requests))
	ops := round.ops
	var ready error
	now := time.Now()
	for i := range requests {
		r, op := &requests[i], &round.made[i]
		err := r.Validate()
		if err == nil && ready == nil && !s.ready.Load() {
			ready = s.check(ctx)
		}
		if err = cmp.Or(err, ready); err != nil {
			results[i].Err = err
			continue
		}
		if s.plainNow(r, now) {
			s.claimPlainly(op, i, r, now)
		} else {
			s.claim(op, i, r)
		}
		ops = append(ops, op)
	}
	for len(ops) > 0 {
		asked, others := distinct(ops, round.names)
		for len(asked) > 0 {
			asked = s.ask(ctx, round, requests, asked, results)
		}
		ops = others
	}
	s.end(round)
	s.foresee(results)
	return results
}

// foresee notes whether the next claims had better ask the script at once: what a process had in hand when it was
// killed comes again together.
func (s *Store) foresee(results []dedupstore.ClaimResult) {
	plain, known := 0, 0
	for i := range results {
		switch results[i].Answer.Found {
		case "": // no answer
		case dedupstore.Absent, dedupstore.Finished:
			plain++
		default:
			known++
		}
	}
	if now := known > plain; plain+known > 0 && now != s.known.Load() {
		s.known.Store(now)
	}
}

// ask sends claims and reads their answers. It returns those that must be asked again, by script.
func (s *Store) ask(
	ctx context.Context, round *round, requests []dedupstore.Request, ops []*operation,
	results []dedupstore.ClaimResult,
) (again []*operation) {
	if !s.send(ctx, ops, s.barrier) {
		round.kept = true
		for _, op := range ops {
			results[op.index].Err = ctx.Err()
		}
		return nil
	}
	var back []*operation
	for _, op := range ops {
		r, result := &requests[op.index], &results[op.index]
		answer, known, err := s.answer(r, op)
		if !known {
			s.claim(op, op.index, r)
			again = append(again, op)
			continue
		}
		result.Answer, result.Err = answer, err
		switch {
		case answer.Status != dedupstore.AcquiredRun:
		case op.lack != nil:
			*result = dedupstore.ClaimResult{Err: op.lack}
			s.release(op, op.index, &answer.Claim, dedupstore.Release{Reason: op.lack.Error()}, '2')
			back = append(back, op)
		case answer.Found == dedupstore.Absent:
			s.claimed.keep(answer.Claim.Fence, op)
		}
	}
	if len(back) > 0 {
		round.kept = true
		s.giveBack(ctx, back)
	}
	return again
}

// answer reads the reply of a claim. Known is false if that was a plain one, and the script must be asked.
func (s *Store) answer(r *dedupstore.Request, op *operation) (a dedupstore.Answer, known bool, err error) {
	if op.plain() {
		return plainAnswer(r, op)
	}
	if err := op.failure(); err != nil {
		return a, true, err
	}
	if a, err = decodeAnswer(op.reply, r); err != nil {
		return a, true, &dedupstore.RecordError{Key: op.name, Problem: err.Error()}
	}
	s.barred.Store(false)
	return a, true, nil
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return s.run(ctx, len(extensions), func(op *operation, i int) error {
		s.extend(op, i, &extensions[i])
		return extensions[i].Validate()
	})
}

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return s.run(ctx, len(settlings), func(op *operation, i int) error {
		c, settlement := &settlings[i].Claim, settlings[i].Settlement
		err := cmp.Or(c.Validate(), dedupstore.ValidateSettlement(settlement))
		if err == nil {
			s.settle(op, i, c, settlement)
		}
		return err
	})
}

// run runs operations with a yes or no as the answer. One makes each of them.
func (s *Store) run(ctx context.Context, n int, one func(op *operation, i int) error) []error {
	errs := make([]error, n)
	round := s.begin(n)
	ops := round.ops
	for i := range round.made {
		if errs[i] = one(&round.made[i], i); errs[i] == nil {
			ops = append(ops, &round.made[i])
		}
	}
	for len(ops) > 0 {
		sent, others := distinct(ops, round.names)
		known := s.send(ctx, sent, barrier{})
		round.kept = round.kept || !known
		var again []*operation
		for _, op := range sent {
			switch {
			case !known:
				errs[op.index] = ctx.Err()
			case s.refused(op):
				errs[op.index] = one(op, op.index) // by script: the record of its claim is forgotten
				again = append(again, op)
			default:
				errs[op.index] = s.done(op)
			}
		}
		ops = append(again, others...) //nolint:gocritic // both, in this order
	}
	s.end(round)
	return errs
}

// done reads the reply of a script that answers yes or no, or of a conditional finish that was not refused.
func (s *Store) done(op *operation) error {
	if err := op.failure(); err != nil {
		if op.err != nil && forbidden(op.err) {
			s.barred.Store(true) // plain claims may still be allowed: each would be a run that cannot be settled
		}
		return err
	}
	switch op.reply {
	case replyOK, replySet:
		return nil
	case replyLost:
		return dedupstore.ErrClaimLost
	}
	return fmt.Errorf("redisstore: %s: %w", op.script.name, errReply)
}

// Shard implements [dedupstore.Sharded]: on Cluster, the address of the node that has the key, once a claim has seen
// the layout.
func (s *Store) Shard(ctx context.Context, key dedupstore.Key) string {
	if s.cluster == nil || !s.loaded.Load() {
		return ""
	}
	if node, err := s.cluster.MasterForKey(ctx, s.name(key)); err == nil {
		return node.Options().Addr
	}
	return ""
}
