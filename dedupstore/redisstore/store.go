package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// Store is a [dedupstore.Store] in Redis, and a [dedupstore.Checker]. It is safe for concurrent use and starts no
// goroutine. The client stays the caller's to close.
type Store struct {
	rdb    redis.UniversalClient
	config Config
	ready  gate
	ops    operations
}

// operations are the scripts of a store; tests put broken ones in their place.
type operations struct{ claim, extend, finish, release, published operation }

// New returns a store that uses the client: a [redis.Client] of a single server or of Sentinel, or a
// [redis.ClusterClient]. It refuses nil, and a [redis.Ring], which sends a key to another server when one is down and
// so forgets who owns it. It does not connect: Redis may still be down. The error names what is wrong, as
// [*dedupstore.InvalidError].
func New(rdb redis.UniversalClient, c Config) (*Store, error) {
	if problem := clientProblem(rdb); problem != "" {
		return nil, &dedupstore.InvalidError{Field: "rdb", Problem: problem}
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Store{rdb: rdb, config: c.withDefaults(), ops: operations{opClaim, opExtend, opFinish, opRelease, opPublished}}
	s.ready.passed.Store(c.SkipCheck)
	return s, nil
}

func clientProblem(rdb redis.UniversalClient) string {
	null := false
	switch rdb := rdb.(type) {
	case nil:
		null = true
	case *redis.Client:
		null = rdb == nil
	case *redis.ClusterClient:
		null = rdb == nil
	case *redis.Ring:
		return "is a *redis.Ring, which moves keys to other servers when one is down: use a single server, Sentinel or Cluster"
	}
	if null {
		return "is nil"
	}
	return ""
}

// Claim implements [dedupstore.Store]. Before the first claim it calls Check, unless the config says otherwise: while
// the server is unfit or down, claims fail and the next one looks again.
func (s *Store) Claim(ctx context.Context, r dedupstore.Request) (dedupstore.Answer, error) {
	if err := r.Validate(); err != nil {
		return dedupstore.Answer{}, err
	}
	if err := s.ready.pass(ctx, s.check); err != nil {
		return dedupstore.Answer{}, err
	}
	fingerprint := ""
	if !r.Fingerprint.IsZero() {
		fingerprint = r.Fingerprint.Scheme + ":" + r.Fingerprint.Sum
	}
	park := "0"
	if r.ParkExpired {
		park = "1"
	}
	reply, err := s.run(ctx, s.ops.claim, r.Key,
		r.Owner, milliseconds(r.Lease), milliseconds(r.Retention), fingerprint, r.MaxAttempts, park,
		strconv.FormatUint(r.Rerun, 10), r.Trace)
	if err != nil {
		return dedupstore.Answer{}, err
	}
	answer, err := decodeAnswer(reply, r)
	if err != nil {
		return dedupstore.Answer{}, &dedupstore.RecordError{Key: s.name(r.Key), Problem: err.Error()}
	}
	return answer, nil
}

// Extend implements [dedupstore.Store].
func (s *Store) Extend(ctx context.Context, c dedupstore.Claim, lease time.Duration) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if lease < time.Millisecond || lease > maxLease {
		return &dedupstore.InvalidError{Field: "lease", Problem: fmt.Sprintf("is %v, want 1ms to %v", lease, maxLease)}
	}
	return s.settle(ctx, s.ops.extend, c, milliseconds(lease), milliseconds(c.Retention))
}

// maxLease is the longest duration that the contract allows.
const maxLease = 100 * 365 * 24 * time.Hour

// Settle implements [dedupstore.Store].
func (s *Store) Settle(ctx context.Context, c dedupstore.Claim, settlement dedupstore.Settlement) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := dedupstore.ValidateSettlement(settlement); err != nil {
		return err
	}
	switch t := settlement.(type) {
	case dedupstore.Finish:
		return s.finish(ctx, c, t)
	case dedupstore.Release:
		uncounted := "0"
		if t.Uncounted {
			uncounted = "1"
		}
		return s.settle(ctx, s.ops.release, c, milliseconds(t.Delay), milliseconds(c.Retention), t.Reason, uncounted)
	case dedupstore.Published:
		produced, err := encodeStubs(t.Produced)
		if err != nil {
			return fmt.Errorf("redisstore: published: %w", err)
		}
		return s.settle(ctx, s.ops.published, c, milliseconds(t.Retention), produced)
	}
	panic("unreachable: validated above")
}

func (s *Store) finish(ctx context.Context, c dedupstore.Claim, f dedupstore.Finish) error {
	publish := len(f.Outcome.Produced) > 0 && !f.Published
	fields, err := encodeOutcome(f.Outcome, publish)
	if err != nil {
		return fmt.Errorf("redisstore: finish: %w", err)
	}
	lease := int64(0)
	if publish {
		lease = milliseconds(c.Lease)
	}
	return s.settle(ctx, s.ops.finish, c, append([]any{lease, milliseconds(f.Retention)}, fields...)...)
}

// settle runs a script whose first arguments are owner and fence, and that answers ok or lost.
func (s *Store) settle(ctx context.Context, op operation, c dedupstore.Claim, args ...any) error {
	reply, err := s.run(ctx, op, c.Key, append([]any{c.Owner, strconv.FormatUint(c.Fence, 10)}, args...)...)
	switch {
	case err != nil:
		return err
	case reply[0] == replyOK:
		return nil
	case reply[0] == replyLost:
		return dedupstore.ErrClaimLost
	}
	return fmt.Errorf("redisstore: %s: %w", op.name, errReply)
}

// run runs a script on the key's record.
func (s *Store) run(ctx context.Context, op operation, key dedupstore.Key, args ...any) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name := s.name(key)
	raw, err := op.script.Run(ctx, s.rdb, []string{name}, args...).Result()
	if err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", op.name, err)
	}
	reply, err := texts(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("redisstore: %s: %w", op.name, err)
	case reply[0] == replyUnreadable && len(reply) == 2:
		return nil, &dedupstore.RecordError{Key: name, Problem: reply[1]}
	case reply[0] == replyFull:
		return nil, fmt.Errorf("redisstore: %s: the server is at maxmemory: %w", op.name, dedupstore.ErrFull)
	}
	return reply, nil
}

// name is the name of the key's record.
func (s *Store) name(key dedupstore.Key) string { return s.config.Prefix + ":" + key.String() }

// milliseconds rounds up: a lease or a retention is never shorter than was asked for.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
