package redisstore

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// An operation is one run of a script, a plain claim, or a conditional finish.
type operation struct {
	index  int // its place in the caller's batch
	script *script
	name   string    // of the record
	packed []byte    // the script's first argument, or the record that is written
	space  [128]byte // for packed, as long as it suffices
	args   [7]any    // of the command; the last may be nil; numbers and texts are pointed to, which takes no memory
	ms     [2]int64  // times among them
	cmd    redis.StringCmd
	stamp  stamp  // of a plain claim
	known  string // of a conditional finish: the record that it replaces

	reply string
	err   error
	lack  error // why a run that it got is not granted

	text *strings.Builder // the round's: the name is a part of it
}

// on makes it an operation on the record of a key.
func (s *Store) on(op *operation, index int, script *script, key dedupstore.Key) {
	from := op.text.Len()
	op.text.Write(s.appendName(make([]byte, 0, mostName), key))
	*op = operation{index: index, script: script, text: op.text, name: op.text.String()[from:]}
	op.packed = op.space[:0]
}

func (op *operation) plain() bool { return op.stamp.clock != nil }

// with gives it the numbers that the script gets behind the packed argument.
func (op *operation) with(ms ...int64) {
	copy(op.ms[:], ms)
	op.args = [...]any{"evalsha", op.script.sha, 1, &op.name, op, &op.ms[0], nil}
	if len(ms) > 1 {
		op.args[6] = &op.ms[1]
	}
}

// MarshalBinary is called by the client when it writes the packed argument.
func (op *operation) MarshalBinary() ([]byte, error) {
	if op.plain() {
		op.stamp.put(op.packed)
	}
	return op.packed, nil
}

// String is what hooks of the client show of the packed argument.
func (op *operation) String() string { return string(op.packed) }

// command is the operation as a command: by the script's digest, or with its source.
func (op *operation) command(ctx context.Context, source bool) *redis.StringCmd {
	if source {
		op.args[0], op.args[1] = "eval", op.script.source
	}
	args := op.args[:]
	if args[6] == nil {
		args = args[:6]
	}
	op.cmd = *redis.NewStringCmd(ctx, args...)
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

// claim makes it a claim by script.
func (s *Store) claim(op *operation, index int, r *dedupstore.Request) {
	s.on(op, index, s.scripts.claim, r.Key)
	b := appendDigits(op.packed, uint64(min(r.MaxAttempts, math.MaxInt32)), countSize)
	b = appendDigits(append(b, '0'+byte(r.SuspectAfter), flag(r.ParkExpired)), min(r.Rerun, maxFence+1), fenceSize)
	op.packed = appendRequest(append(b, flag(s.barrier.on())), r)
	op.with(milliseconds(r.Lease) + milliseconds(r.Retention))
}

func (s *Store) extend(op *operation, index int, x *dedupstore.Extension) {
	s.claimed.take(x.Claim.Fence)
	s.on(op, index, s.scripts.extend, x.Claim.Key)
	op.packed = append(appendOwner(op.packed, &x.Claim), flag(x.Started))
	op.with(milliseconds(x.Lease), milliseconds(x.Claim.Retention))
}

// settle makes it a settlement that has been validated.
func (s *Store) settle(op *operation, index int, c *dedupstore.Claim, settlement dedupstore.Settlement) {
	record, known := s.claimed.take(c.Fence)
	switch t := settlement.(type) {
	case dedupstore.Finish:
		s.finish(op, index, c, &t)
		if known && !t.Publishes() {
			op.finishConditionally(record)
		}
	case dedupstore.Release:
		s.release(op, index, c, t, flag(t.Uncounted))
	case dedupstore.Published:
		s.on(op, index, s.scripts.published, c.Key)
		op.packed = appendOwner(op.packed, c)
		if len(t.Produced) > 0 {
			op.packed = appendText(op.packed, 'K', encodeStubs(t.Produced))
		}
		op.with(milliseconds(t.Retention))
	}
}

func (s *Store) finish(op *operation, index int, c *dedupstore.Claim, f *dedupstore.Finish) {
	s.on(op, index, s.scripts.finish, c.Key)
	op.with(milliseconds(f.Retention))
	state := byte(stateDone)
	if f.Publishes() {
		state = statePublishing
		op.with(milliseconds(f.Retention), milliseconds(c.Lease))
	}
	op.packed = appendOwner(append(op.packed, layoutVersion, state, kindOf(&f.Outcome)), c)
	op.packed = appendOutcome(appendTook(op.packed, f.Took), &f.Outcome, f.Publishes())
}

// release makes it a release; what uncounted says stands in release.lua.
func (s *Store) release(op *operation, index int, c *dedupstore.Claim, t dedupstore.Release, uncounted byte) {
	s.on(op, index, s.scripts.release, c.Key)
	op.packed = appendTook(append(appendOwner(op.packed, c), uncounted), t.Took)
	if t.Reason != "" {
		op.packed = appendText(op.packed, 'M', t.Reason)
	}
	op.with(milliseconds(t.Delay), milliseconds(c.Retention))
}

func flag(set bool) byte {
	if set {
		return '1'
	}
	return '0'
}

// mostName is how long the name of a record may be that takes no memory to be made.
const mostName = 160

// name is the name of the key's record.
func (s *Store) name(key dedupstore.Key) string {
	return string(s.appendName(make([]byte, 0, mostName), key))
}

func (s *Store) appendName(b []byte, key dedupstore.Key) []byte {
	return key.Append(append(append(b, s.config.Prefix...), ':'))
}

// milliseconds rounds up: a lease or a retention is never shorter than was asked for.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
