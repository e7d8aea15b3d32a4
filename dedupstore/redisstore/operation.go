package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

// maxArguments is how many arguments a script has at most.
const maxArguments = 5

// An operation is one run of a script. It is used again when its caller has read the reply.
type operation struct {
	script  *script
	packed  []byte                // the name of the record and the arguments, one after the other
	ends    [1 + maxArguments]int // where they end
	n       int                   // how many ends there are
	name    string                // of the record
	values  [maxArguments]string  // the arguments
	queues  bool                  // its caller waits no longer than his context, whatever the client does
	plain   bool                  // it is no script, but a plain claim of
	stamped stamped               // this
	args    [4 + maxArguments]any // of the command
	cmd     redis.StringCmd

	reply        string
	acknowledged acknowledged
	err          error

	state atomic.Int32
	done  chan struct{} // gets a value when a waiting caller's operation is finished
}

// acknowledged says how many replicas have what an operation wrote, if that was asked, or why that is not known.
type acknowledged struct {
	replicas int
	err      error
}

// The states of an operation while its caller waits.
const (
	waiting int32 = iota
	flushing
	finished
	abandoned // its caller has gone: it belongs to who flushes it
)

var operations = sync.Pool{New: func() any { return &operation{done: make(chan struct{}, 1)} }}

// newOperation returns an operation on the record of a name. Arguments are appended to op.packed, each with an end.
func newOperation(s *script, prefix string, key dedupstore.Key) *operation {
	op := operations.Get().(*operation)
	op.script, op.queues, op.plain, op.n, op.acknowledged = s, false, false, 0, acknowledged{}
	op.state.Store(waiting)
	op.packed = append(append(op.packed[:0], prefix...), ':')
	op.packed = key.Append(op.packed)
	op.end()
	return op
}

// end ends the name or an argument.
func (op *operation) end() {
	op.ends[op.n] = len(op.packed)
	op.n++
}

func (op *operation) number(n int64) {
	op.packed = strconv.AppendInt(op.packed, n, 10)
	op.end()
}

func (op *operation) text(s string) {
	op.packed = append(op.packed, s...)
	op.end()
}

// owner appends the fence and the tag of a claim.
func (op *operation) owner(c dedupstore.Claim) {
	op.packed = appendOwner(op.packed, c)
	op.end()
}

// seal cuts what was appended into the name and the arguments.
func (op *operation) seal() *operation {
	all := string(op.packed)
	op.name = all[:op.ends[0]]
	for i := range op.n - 1 {
		op.values[i] = all[op.ends[i]:op.ends[i+1]]
	}
	return op
}

// size is how many bytes of names and arguments the operation sends.
func (op *operation) size() int { return len(op.packed) + len(op.stamped.value) }

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

// keptBytes is the largest space that an operation keeps for the next one.
const keptBytes = 16 << 10

// free gives the operation back. Nobody may use it after that. One without a reply is not used again: a hook of the
// client may have given it up while its command is still under way, and the reply to that would be taken for the next
// one's.
func (op *operation) free() {
	if replied := op.err == nil && op.reply != "" || errors.Is(op.err, redis.Nil); !replied {
		return
	}
	if cap(op.packed) > keptBytes {
		op.packed = nil
	}
	op.name, op.reply, op.err = "", "", nil
	op.stamped = stamped{value: op.stamped.value[:0]}
	op.cmd = redis.StringCmd{}
	clear(op.values[:])
	clear(op.args[:])
	operations.Put(op)
}

// command is the operation as a command: by the script's digest, or with its source. A cluster client finds the node
// by the name, which must be a string for that; pointers, which need no memory of their own, will do for other clients.
func (op *operation) command(ctx context.Context, source, cluster bool) *redis.StringCmd {
	if op.plain {
		op.args = [4 + maxArguments]any{"set", &op.name, &op.stamped, "nx", "get", "px", &op.stamped.keep}
		op.cmd = *redis.NewStringCmd(ctx, op.args[:7]...)
		return &op.cmd
	}
	op.args[0], op.args[1], op.args[2] = "evalsha", op.script.sha, 1
	if source {
		op.args[0], op.args[1] = "eval", op.script.source
	}
	op.args[3] = &op.name
	if cluster {
		op.args[3] = op.name
	}
	for i := range op.n - 1 {
		op.args[4+i] = &op.values[i]
	}
	op.cmd = *redis.NewStringCmd(ctx, op.args[:3+op.n]...)
	return &op.cmd
}

// finish tells the caller that reply and err can be read. The operation is not the flusher's any more.
func (op *operation) finish() {
	if op.state.CompareAndSwap(flushing, finished) {
		op.done <- struct{}{}
	}
}

// await waits for the reply. If the context ends before, the operation is left to its flusher, which does not send it
// any more. One that has been sent is waited for until the later one ends.
func (op *operation) await(ctx, later context.Context) (left bool) {
	select {
	case <-op.done:
		return false
	case <-ctx.Done():
		if op.state.CompareAndSwap(waiting, abandoned) {
			return true
		}
	}
	select {
	case <-op.done:
		return false
	case <-later.Done():
		if op.state.CompareAndSwap(flushing, abandoned) {
			return true
		}
		<-op.done
		return false
	}
}
