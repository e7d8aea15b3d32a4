package redisstore

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// An operation is one run of a script, or a plain claim.
type operation struct {
	index   int // its place in the caller's batch
	script  *script
	name    string  // of the record
	args    []any   // of the command that runs the script
	space   [7]any  // that most args fit in
	size    int     // how many bytes of text it sends
	plain   bool    // it is a plain claim
	stamped stamped // its record
	cmd     *redis.StringCmd

	reply        string
	acknowledged acknowledged
	err          error
}

// packedSize has room for what most operations pack into one argument.
const packedSize = 160

// newOperation makes an operation on the record of a name.
func newOperation(index int, script *script, name string, args ...any) *operation {
	op := &operation{index: index, script: script, name: name, size: len(name)}
	op.args = append(append(op.space[:0], "evalsha", script.sha, 1, name), args...)
	for _, arg := range args {
		if text, ok := arg.([]byte); ok {
			op.size += len(text)
		}
	}
	return op
}

// command is the operation as a command: by the script's digest, or with its source.
func (op *operation) command(ctx context.Context, source bool) *redis.StringCmd {
	if source {
		op.args[0], op.args[1] = "eval", op.script.source
	}
	op.cmd = redis.NewStringCmd(ctx, op.args...)
	return op.cmd
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
	b := appendDigits(make([]byte, 0, packedSize), uint64(min(r.MaxAttempts, math.MaxInt32)), countSize)
	b = appendDigits(append(b, flag(r.ParkExpired)), min(r.Rerun, maxFence+1), fenceSize)
	b = appendRequest(append(b, flag(s.barrier.on())), r)
	return newOperation(index, s.scripts.claim, s.name(r.Key), b, milliseconds(r.Lease)+milliseconds(r.Retention))
}

func (s *Store) extendOperation(index int, x dedupstore.Extension) *operation {
	owner := append(ownerOf(x.Claim), flag(x.Started))
	return newOperation(index, s.scripts.extend, s.name(x.Claim.Key), owner, milliseconds(x.Lease),
		milliseconds(x.Claim.Retention))
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
		return newOperation(index, s.scripts.published, s.name(c.Key),
			ownerOf(c), milliseconds(t.Retention), produced), nil
	}
	panic("unreachable: validated before")
}

func (s *Store) finishOperation(index int, c dedupstore.Claim, f dedupstore.Finish) (*operation, error) {
	publish := f.Publishes()
	state := byte(stateDone)
	if publish {
		state = statePublishing
	}
	packed := append(make([]byte, 0, packedSize), layoutVersion, state, kindOf(f.Outcome))
	packed, err := appendOutcome(appendTook(appendOwner(packed, c), f.Took), f.Outcome, publish)
	if err != nil {
		return nil, fmt.Errorf("redisstore: finish: %w", err)
	}
	if publish {
		return newOperation(index, s.scripts.finish, s.name(c.Key), packed, milliseconds(f.Retention),
			milliseconds(c.Lease)), nil
	}
	return newOperation(index, s.scripts.finish, s.name(c.Key), packed, milliseconds(f.Retention)), nil
}

// releaseOperation makes the operation of a release; what uncounted says stands in release.lua.
func (s *Store) releaseOperation(index int, c dedupstore.Claim, t dedupstore.Release, uncounted byte) *operation {
	why := appendTook(nil, t.Took)
	if t.Reason != "" {
		why = appendText(why, 'M', t.Reason)
	}
	return newOperation(index, s.scripts.release, s.name(c.Key),
		ownerOf(c), milliseconds(t.Delay), milliseconds(c.Retention), []byte{uncounted}, why)
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
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
