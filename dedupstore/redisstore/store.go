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

// Store is a [dedupstore.Store] in Redis, and a [dedupstore.Checker]. It is safe for concurrent use. With a client that
// does not heed contexts it starts goroutines, which end when nothing is under way; [Store.Close] waits for them. The
// caller closes the client.
type Store struct {
	rdb     redis.UniversalClient
	config  Config
	ready   *gate
	scripts scripts
	plain   atomic.Bool // the server can make plain claims
	barred  atomic.Bool // a script was forbidden, and none has claimed anything since
	barrier barrier
	deaf    bool  // the client may wait for the network although the context has ended
	clock   clock // of the server; a cluster has many

	cluster    *redis.ClusterClient // nil: a single server
	loaded     atomic.Bool          // the cluster's layout has been seen: looking at it asks nobody any more
	background background
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
	t, known := timeoutsOf(rdb)
	s.barrier, s.deaf = barrier{c.Replicas, t.replicas()}, !known || t.deaf()
	s.cluster, _ = rdb.(*redis.ClusterClient)
	return s, nil
}

// Close waits until nothing that the store began is under way any more. Operations whose callers have gone may be, for
// as long as the client waits for the network: without end, where its timeouts are off. Call it after the last
// operation. It closes nothing: a client that is closed before ends what waits.
func (s *Store) Close() {
	s.ready.checks.wait()
	s.background.wait()
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

// claimOperation makes the operation of a claim by script.
func (s *Store) claimOperation(index int, r dedupstore.Request) *operation {
	b := appendDigits(make([]byte, 0, packedSize), uint64(min(r.MaxAttempts, math.MaxInt32)), countSize)
	b = appendDigits(append(b, flag(r.ParkExpired)), min(r.Rerun, maxFence+1), fenceSize)
	b = appendRequest(append(b, flag(s.barrier.on())), r)
	return s.operation(index, s.scripts.claim, r.Key, b, milliseconds(r.Lease)+milliseconds(r.Retention))
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

// settleOperation makes the operation of a settlement.
func (s *Store) settleOperation(index int, settling dedupstore.Settling) (*operation, error) {
	c, settlement := settling.Claim, settling.Settlement
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return nil, err
	}
	switch t := settlement.(type) {
	case dedupstore.Finish:
		return s.finishOperation(index, c, t)
	case dedupstore.Release:
		return s.releaseOperation(index, c, t, flag(t.Uncounted)), nil
	case dedupstore.Published:
		produced, err := encodeStubs(t.Produced)
		if err != nil {
			return nil, fmt.Errorf("redisstore: published: %w", err)
		}
		return s.operation(index, s.scripts.published, c.Key, ownerOf(c), milliseconds(t.Retention), produced), nil
	}
	panic("unreachable: validated above")
}

// releaseOperation makes the operation of a release; what the last argument says stands in release.lua.
func (s *Store) releaseOperation(index int, c dedupstore.Claim, t dedupstore.Release, uncounted byte) *operation {
	return s.operation(index, s.scripts.release, c.Key,
		ownerOf(c), milliseconds(t.Delay), milliseconds(c.Retention), []byte{uncounted}, []byte(t.Reason))
}

func (s *Store) finishOperation(index int, c dedupstore.Claim, f dedupstore.Finish) (*operation, error) {
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
		return s.operation(index, s.scripts.finish, c.Key, packed, milliseconds(f.Retention), milliseconds(c.Lease)), nil
	}
	return s.operation(index, s.scripts.finish, c.Key, packed, milliseconds(f.Retention)), nil
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

// Shard implements [dedupstore.Sharded]: on Cluster, the address of the node that has the key, once a claim has seen
// the layout.
func (s *Store) Shard(ctx context.Context, key dedupstore.Key) string {
	if s.cluster == nil || !s.loaded.Load() {
		return ""
	}
	node, err := s.cluster.MasterForKey(ctx, s.name(key))
	if err != nil {
		return ""
	}
	return node.Options().Addr
}
