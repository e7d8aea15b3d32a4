package redisstore

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/isnil"
)

// Store is a [dedupstore.Store] in Redis, a [dedupstore.Batcher] and a [dedupstore.Checker]. It is safe for concurrent
// use. It starts goroutines for shared pipelines, which end when nothing is under way; [Store.Close] waits for them.
// The caller closes the client.
type Store struct {
	rdb     redis.UniversalClient
	config  Config
	ready   *gate
	scripts scripts
	plain   atomic.Bool // the server can make plain claims
	barred  atomic.Bool // a script was forbidden, and none has claimed anything since
	lanes   *lanes
}

// scripts are the scripts of a store; tests put broken ones in their place.
type scripts struct{ claim, extend, finish, release, published *script }

var allScripts = scripts{claimScript, extendScript, finishScript, releaseScript, publishedScript}

// New returns a store that uses the client: a [redis.Client] of a single server or of Sentinel, or a
// [redis.ClusterClient]. It refuses nil, and a [redis.Ring], which sends a key to another server when one is down and
// so forgets who owns it. It does not connect: Redis may still be down. The error names what is wrong, as
// [*dedupstore.InvalidError].
func New(rdb redis.UniversalClient, c Config) (*Store, error) {
	if problem := clientProblem(rdb); problem != "" {
		return nil, &dedupstore.InvalidError{Field: "rdb", Problem: problem}
	}
	c = c.withDefaults()
	if err := c.validate(rdb); err != nil {
		return nil, err
	}
	s := &Store{rdb: rdb, config: c, scripts: allScripts, ready: newGate()}
	s.ready.passed.Store(c.SkipCheck)
	t, _ := timeoutsOf(rdb)
	s.lanes = newLanes(rdb, barrier{c.Replicas, t.replicas()})
	return s, nil
}

// Close waits until nothing that the store began is under way any more. Operations whose callers have gone may be, for
// as long as the client waits for the network: without end, where its timeouts are off. Call it after the last
// operation. It closes nothing: a client that is closed before ends what waits.
func (s *Store) Close() {
	s.ready.checks.wait()
	s.lanes.flushes.wait()
}

func clientProblem(rdb redis.UniversalClient) string {
	if isnil.Nil(rdb) {
		return "is nil"
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return "is a *redis.Ring, which moves keys to other servers when one is down: use a single server, Sentinel " +
			"or Cluster"
	}
	return ""
}

func (s *Store) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, s.claimOne)
}

// Claim implements [dedupstore.Store]. Before the first claim it calls Check, unless the config says otherwise: while
// the server is unfit or down, claims fail and the next one looks again. With Config.Replicas a run that too few
// replicas know is not granted: [dedupstore.ErrNotDurable]. A claim that has been sent is waited for then until the
// replicas have answered, at most half a second longer than they have and the context lasts: it may have to be given
// back.
func (s *Store) claimOne(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if err := r.Validate(); err != nil {
		return dedupstore.Answer{}, err
	}
	result := s.Claim(ctx, []dedupstore.Request{r})[0]
	return result.Answer, result.Err
}

// claimOperation makes the operation of a claim by script.
func (s *Store) claimOperation(r dedupstore.Request) *operation {
	b := appendDigits(make([]byte, 0, packedSize), uint64(min(r.MaxAttempts, math.MaxInt32)), countSize)
	b = appendDigits(append(b, flag(r.ParkExpired)), min(r.Rerun, maxFence+1), fenceSize)
	b = appendRequest(append(b, flag(s.barrier().on())), r)
	return s.operation(s.scripts.claim, r.Key, b, milliseconds(r.Lease)+milliseconds(r.Retention))
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
}

// answer reads the reply of a claim. It is not known if that was a plain one, and the script has to be asked.
func (s *Store) answer(r dedupstore.Request, op *operation) (a dedupstore.Answer, known bool, err error) {
	if op.plain {
		return s.plainAnswer(r, op)
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

func (s *Store) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, s.extendOne)
}

// Extend implements [dedupstore.Store]. Unlike the rest, it also returns at once when the context is cancelled: an
// outcome may be waiting for the end of its heartbeat.
func (s *Store) extendOne(ctx context.Context, x dedupstore.Extension) error {
	c, lease := x.Claim, x.Lease

	if err := c.Validate(); err != nil {
		return err
	}
	if lease < time.Millisecond || lease > maxLease {
		return &dedupstore.InvalidError{Field: "lease", Problem: fmt.Sprintf("is %v, want 1ms to %v", lease, maxLease)}
	}
	op := s.operation(s.scripts.extend, c.Key, ownerOf(c), milliseconds(lease), milliseconds(c.Retention))
	op.queues = true
	return s.done(ctx, s.run(ctx, op, false))
}

// maxLease is the longest duration that the contract allows.
const maxLease = 100 * 365 * 24 * time.Hour

func (s *Store) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, s.settleOne)
}

// Settle implements [dedupstore.Store].
func (s *Store) settleOne(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	op, err := s.settleOperation(c, settlement)
	if err != nil {
		return err
	}
	return s.done(ctx, s.run(ctx, op, false))
}

// settleOperation makes the operation of a settlement.
func (s *Store) settleOperation(c dedupstore.Claim, settlement dedupstore.Settlement) (*operation, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return nil, err
	}
	switch t := settlement.(type) {
	case dedupstore.Finish:
		return s.finishOperation(c, t)
	case dedupstore.Release:
		return s.releaseOperation(c, t, flag(t.Uncounted)), nil
	case dedupstore.Published:
		produced, err := encodeStubs(t.Produced)
		if err != nil {
			return nil, fmt.Errorf("redisstore: published: %w", err)
		}
		return s.operation(s.scripts.published, c.Key, ownerOf(c), milliseconds(t.Retention), produced), nil
	}
	panic("unreachable: validated above")
}

// releaseOperation makes the operation of a release; what the last argument says stands in release.lua.
func (s *Store) releaseOperation(c dedupstore.Claim, t dedupstore.Release, uncounted byte) *operation {
	return s.operation(s.scripts.release, c.Key,
		ownerOf(c), milliseconds(t.Delay), milliseconds(c.Retention), []byte{uncounted}, []byte(t.Reason))
}

func (s *Store) finishOperation(c dedupstore.Claim, f dedupstore.Finish) (*operation, error) {
	publish := len(f.Outcome.Produced) > 0 && !f.Published
	state := byte(stateDone)
	if publish {
		state = statePublishing
	}
	packed := append(make([]byte, 0, packedSize), layoutVersion, state, kindOf(f.Outcome))
	packed, err := appendOutcome(appendOwner(packed, c), f.Outcome, publish)
	if err != nil {
		return nil, fmt.Errorf("redisstore: finish: %w", err)
	}
	if publish {
		return s.operation(s.scripts.finish, c.Key, packed, milliseconds(f.Retention), milliseconds(c.Lease)), nil
	}
	return s.operation(s.scripts.finish, c.Key, packed, milliseconds(f.Retention)), nil
}

// done reads the reply of a script that answers yes or no.
func (s *Store) done(ctx context.Context, op *operation) error {
	if op == nil {
		return ctx.Err()
	}
	if err := op.failure(); err != nil {
		if op.err != nil && forbidden(op.err) {
			s.barred.Store(true) // plain claims may still be allowed: each would be a run that cannot be settled
		}
		return err
	}
	switch op.reply {
	case replyOK:
		return nil
	case replyLost:
		return dedupstore.ErrClaimLost
	}
	return fmt.Errorf("redisstore: %s: %w", op.script.name, errReply)
}

// run runs an operation and returns it, or nil if the context ended before its reply came.
func (s *Store) run(ctx context.Context, op *operation, claim bool) *operation {
	if ctx.Err() != nil {
		return nil
	}
	ops := [1]*operation{op}
	s.lanes.of(ctx, op.name, claim).do(ctx, ops[:])
	return ops[0]
}

// name is the name of the key's record.
func (s *Store) name(key dedupstore.Key) string {
	b := append(make([]byte, 0, packedSize), s.config.Prefix...)
	return string(key.Append(append(b, ':')))
}

// milliseconds rounds up: a lease or a retention is never shorter than was asked for.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
