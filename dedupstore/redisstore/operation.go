package redisstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// An operation is one run of a script, or a plain claim. It is used again when its caller has read the reply.
type operation struct {
	index   int // its place in the caller's batch
	script  *script
	name    string  // of the record
	packed  []byte  // the script's first argument, or the record of a plain claim
	args    [9]any  // of the command
	plain   bool    // it is a plain claim
	stamped stamped // its record
	cmd     redis.StringCmd

	reply        string
	acknowledged acknowledged
	err          error
}

var operations = sync.Pool{New: func() any { return new(operation) }}

// newOperation makes an operation on the record of a name.
func newOperation(index int, script *script, name string) *operation {
	op := operations.Get().(*operation)
	op.index, op.script, op.name, op.packed = index, script, name, op.packed[:0]
	return op
}

// free gives operations back whose replies have been read. One without a reply is not used again: a hook of the client
// may have given it up while its command is still under way, and the reply to that would be taken for the next one's.
func free(ops []*operation) {
	const most = 16 << 10 // what one keeps for the next
	for _, op := range ops {
		if op.err != nil && op.err != redis.Nil || cap(op.packed) > most { //nolint:errorlint // never wrapped
			continue
		}
		*op = operation{packed: op.packed[:0]}
		operations.Put(op)
	}
}

// with is the operation with the arguments of its script behind the packed one.
func (op *operation) with(args ...any) *operation {
	copy(op.args[:], append([]any{"evalsha", op.script.sha, 1, op.name, op}, args...))
	return op
}

// MarshalBinary is called by the client when it writes the packed argument.
func (op *operation) MarshalBinary() ([]byte, error) { return op.packed, nil }

// size is how many bytes of text the operation sends.
func (op *operation) size() int {
	n := len(op.name) + len(op.packed)
	for _, arg := range op.args {
		if text, ok := arg.([]byte); ok {
			n += len(text)
		}
	}
	return n
}

// command is the operation as a command: by the script's digest, or with its source.
func (op *operation) command(ctx context.Context, source bool) *redis.StringCmd {
	if source {
		op.args[0], op.args[1] = "eval", op.script.source
	}
	n := len(op.args)
	for op.args[n-1] == nil {
		n--
	}
	op.cmd = *redis.NewStringCmd(ctx, op.args[:n]...)
	return &op.cmd
}

// failure is why there is no reply of the script that could be read.
func (op *operation) failure() error {
	switch {
	case op.err != nil:
		return fmt.Errorf("redisstore: %s: %w", op.script.name, op.err)
	case op.reply == "":
		return fmt.Errorf("redisstore: %s: %w", op.script.name, errReply)
	case op.reply[0] == replyUnreadable:
		return &dedupstore.RecordError{Key: op.name, Problem: op.reply[1:]}
	case op.reply[0] == replyFull:
		return fmt.Errorf("redisstore: %s: the server is at maxmemory: %w", op.script.name, dedupstore.ErrFull)
	}
	return nil
}

// claimOperation makes the operation of a claim by script.
func (s *Store) claimOperation(index int, r dedupstore.Request) *operation {
	op := newOperation(index, s.scripts.claim, s.name(r.Key))
	b := appendDigits(op.packed, uint64(min(r.MaxAttempts, math.MaxInt32)), countSize)
	b = appendDigits(append(b, flag(r.ParkExpired)), min(r.Rerun, maxFence+1), fenceSize)
	op.packed = appendRequest(append(b, flag(s.barrier.on())), r)
	return op.with(milliseconds(r.Lease) + milliseconds(r.Retention))
}

func (s *Store) extendOperation(index int, x dedupstore.Extension) *operation {
	op := newOperation(index, s.scripts.extend, s.name(x.Claim.Key))
	op.packed = append(appendOwner(op.packed, x.Claim), flag(x.Started))
	return op.with(milliseconds(x.Lease), milliseconds(x.Claim.Retention))
}

// settleOperation makes the operation of a settlement that has been validated.
func (s *Store) settleOperation(index int, c dedupstore.Claim, settlement dedupstore.Settlement) (*operation, error) {
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
		op := newOperation(index, s.scripts.published, s.name(c.Key))
		op.packed = appendOwner(op.packed, c)
		return op.with(milliseconds(t.Retention), produced), nil
	}
	panic("unreachable: validated before")
}

func (s *Store) finishOperation(index int, c dedupstore.Claim, f dedupstore.Finish) (*operation, error) {
	op := newOperation(index, s.scripts.finish, s.name(c.Key))
	publish := f.Publishes()
	state := byte(stateDone)
	if publish {
		state = statePublishing
	}
	var err error
	op.packed = append(op.packed, layoutVersion, state, kindOf(f.Outcome))
	op.packed, err = appendOutcome(appendTook(appendOwner(op.packed, c), f.Took), f.Outcome, publish)
	if err != nil {
		return nil, fmt.Errorf("redisstore: finish: %w", err)
	}
	if publish {
		return op.with(milliseconds(f.Retention), milliseconds(c.Lease)), nil
	}
	return op.with(milliseconds(f.Retention)), nil
}

// releaseOperation makes the operation of a release; what uncounted says stands in release.lua.
func (s *Store) releaseOperation(index int, c dedupstore.Claim, t dedupstore.Release, uncounted byte) *operation {
	op := newOperation(index, s.scripts.release, s.name(c.Key))
	op.packed = appendOwner(op.packed, c)
	why := appendTook([]byte{}, t.Took)
	if t.Reason != "" {
		why = appendText(why, 'M', t.Reason)
	}
	return op.with(milliseconds(t.Delay), milliseconds(c.Retention), []byte{uncounted}, why)
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
}

// name is the name of the key's record.
func (s *Store) name(key dedupstore.Key) string {
	const most = 160 // that it takes no memory for
	b := append(make([]byte, 0, most), s.config.Prefix...)
	return string(key.Append(append(b, ':')))
}

// milliseconds rounds up: a lease or a retention is never shorter than was asked for.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
