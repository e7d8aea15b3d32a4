package redisstore

import (
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A conditional finish is SET IFEQ: it writes the outcome of a first run if the record is still, byte for byte, what
// the claim made of it. Redis 8.4 and Valkey 8.1 have it. It costs the server a third of what the script does;
// docs/adr/0012 has the figures. The store tries it, and asks the script wherever it is refused: after a lost reply the
// script tells that the outcome is stored.

const (
	// maxClaimed is how many records of claims a store remembers: about 2 MB.
	maxClaimed = 8192

	// conditionalPause is for how long a store tries no conditional finish after an error, such as that of a server
	// that does not know it.
	conditionalPause = 10 * time.Minute
)

// claimed remembers the records of first runs by their fences, until they are extended or settled.
type claimed struct {
	mu      sync.Mutex
	records map[uint64]string
	resume  time.Time // nothing is remembered before: conditional finishes are not tried
}

// keep remembers the record that a claim made. A full memory is emptied: scripts finish what it forgets.
func (c *claimed) keep(fence uint64, op *operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.resume.IsZero() && time.Now().Before(c.resume) {
		return
	}
	if c.records == nil || len(c.records) >= maxClaimed {
		c.records = map[uint64]string{}
	}
	c.records[fence] = op.claimed()
}

// take returns the record under a fence, and forgets it.
func (c *claimed) take(fence uint64) (record string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	record, known = c.records[fence]
	delete(c.records, fence)
	return record, known
}

// pause forgets everything, and remembers nothing for a while.
func (c *claimed) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records, c.resume = nil, time.Now().Add(conditionalPause)
}

// claimed is the record that a claim made, to which a first run was granted.
func (op *operation) claimed() string {
	if op.plain() {
		return string(op.packed)
	}
	const options = countSize + 1 + 1 + fenceSize + 1 // what stands before the sections in the claim script's argument
	return string(layoutVersion) + string(stateRunning) + "-" + op.reply + string(op.packed[options:])
}

// finishConditionally makes a finish that publishes nothing conditional on the record of its claim. Like the first part
// of the script it keeps what the record says of the run, but the lease, which is its last section.
func (op *operation) finishConditionally(record string) {
	if record[3:headSize] != string(op.packed[3:headSize]) { // fence and owner
		return
	}
	op.known = record
	op.packed = append(op.packed, record[headSize:len(record)-1-leaseSize]...)
	op.args = [...]any{"set", &op.name, op, "ifeq", &op.known, "px", &op.ms[0]} // the retention
}

// refused tells whether a conditional finish wrote nothing, so that the script has to be asked.
func (s *Store) refused(op *operation) bool {
	if op.known == "" || op.err == nil {
		return false
	}
	if errors.Is(op.err, redis.Nil) {
		return true
	}
	_, answered := errors.AsType[redis.Error](op.err)
	if answered {
		s.claimed.pause()
	}
	return answered
}
