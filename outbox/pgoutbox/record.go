package pgoutbox

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"strconv"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A record is a message as it is written.
type record struct {
	outgoing.Record
	index  int   // in the call
	number int64 // the row's
	tries  int   // how often another message had the number
	shared bool  // another of the call has the number, too
}

// A name identifies a row: messages with equal names are one.
type name struct{ topic, id, copy string }

func (r record) name() name { return name{r.Topic, r.ID, r.Copy} }

func (r record) same(key string, payload []byte) bool {
	return key == r.Key && bytes.Equal(payload, r.Payload)
}

const (
	maxPayloads   = 256 << 20 // of one call: far from PostgreSQL's limit of 1 GB, also as text
	maxOrderedKey = 1024      // an index holds it
)

// records turns the messages of a call into records, each once.
func (o *Outbox) records(ctx context.Context, messages []producer.Message) ([]record, error) {
	records := make([]record, 0, len(messages))
	index := make(map[name]int, len(messages))
	size := 0
	for i, m := range messages {
		made, err := outgoing.NewRecord(ctx, m)
		size += len(m.Payload)
		switch n := len(m.Key); {
		case err != nil:
		case size > maxPayloads:
			err = &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.Payload",
				Problem: fmt.Sprintf("makes the payloads of the call more than %d bytes", maxPayloads)}
		case o.cfg.Ordered && n > maxOrderedKey:
			err = &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.Key",
				Problem: fmt.Sprintf("has %d bytes, want at most %d in an ordered outbox", n, maxOrderedKey)}
		}
		r := record{Record: made, index: len(records)}
		first, found := index[r.name()]
		if err == nil && found && !records[first].same(r.Key, r.Payload) {
			err = &outbox.ConflictError{ID: r.ID, Topic: r.Topic}
		}
		if err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if !found {
			r.number = rowNumber(r, 0)
			index[r.name()] = r.index
			records = append(records, r)
		}
	}
	return records, nil
}

// uuid7 is a UUIDv7 in its usual form.
var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// rowNumber is 64 bits of a hash of the row's name, other bits for each try, because two messages may share some. If
// the ID has a time in it, the number begins with that time, in units of 1.024 s. Rows written at about the same time
// then lie close together in the index, and the server writes fewer pages after a checkpoint.
func rowNumber(r record, try int) int64 {
	hash := ids.Derive("oncemill/outbox", r.Topic, r.ID, r.Copy, strconv.Itoa(try))
	n := fromHex(hash[:8])<<32 | fromHex(hash[len(hash)-8:]) // neither has the bits of the version or the variant
	if id := r.ID; uuid7.MatchString(id) {
		const timeBits = 20
		milliseconds := fromHex(id[:8])<<16 | fromHex(id[9:13])
		n = milliseconds>>10<<(64-timeBits) | n>>timeBits
	}
	return int64(n)
}

func fromHex(digits string) uint64 {
	n, _ := strconv.ParseUint(digits, 16, 64) // they are digits
	return n
}

// partitions is how many locks the keys of an ordered outbox share, so that a transaction never takes more.
const partitions = 64

// partition is the number of the lock that a key shares with others. It must never change, because programs of several
// versions write to one outbox.
func partition(key string) int64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return int64(h.Sum64() % partitions)
}
