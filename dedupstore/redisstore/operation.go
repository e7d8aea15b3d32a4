package redisstore

import (
	"context"
	"fmt"

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
	queues  bool    // its caller waits no longer than his context, whatever the client does
	plain   bool    // it is a plain claim
	stamped stamped // its record
	cmd     *redis.StringCmd

	reply        string
	acknowledged acknowledged
	err          error
}

// acknowledged says how many replicas have what an operation wrote, if that was asked, or why that is not known.
type acknowledged struct {
	replicas int
	err      error
}

// packedSize has room for what most operations pack into one argument.
const packedSize = 160

// operation makes an operation on the record of a key.
func (s *Store) operation(index int, script *script, key dedupstore.Key, args ...any) *operation {
	op := &operation{index: index, script: script, name: s.name(key)}
	op.size = len(op.name)
	op.args = append(append(op.space[:0], "evalsha", script.sha, 1, op.name), args...)
	for _, arg := range args {
		if text, ok := arg.([]byte); ok {
			op.size += len(text)
		}
	}
	return op
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

// command is the operation as a command: by the script's digest, or with its source.
func (op *operation) command(ctx context.Context, source bool) *redis.StringCmd {
	if source {
		op.args[0], op.args[1] = "eval", op.script.source
	}
	op.cmd = redis.NewStringCmd(ctx, op.args...)
	return op.cmd
}
