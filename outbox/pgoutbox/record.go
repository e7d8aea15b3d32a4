package pgoutbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// A record is a message as it is written.
type record struct {
	message   producer.Message
	index     int    // in the call
	number    int64  // the row's
	tries     int    // how often another message had the number
	copy      string // purpose and generation of a deliberate copy
	kind      string // of the event, for Debezium
	header    string // JSON; empty: nothing but the ID, which has a column of its own
	notBefore int64  // in microseconds since 1970; 0: no delay
}

func (o *Outbox) newRecord(ctx context.Context, m producer.Message) (record, error) {
	ctx, created := telemetry.Create(ctx, m.Topic, m.Header)
	err := producer.Stamp(telemetry.KeepBaggage(ctx, o.cfg.Baggage), &m)
	created(m.ID)
	if err != nil {
		return record{}, err
	}
	telemetry.Forget(m.Header, producer.HeaderResend)
	if err := o.validate(m); err != nil {
		return record{}, err
	}
	r := record{message: m, kind: cmp.Or(m.Header.Get(headerType), m.Topic)}
	if rest := maps.Clone(m.Header); len(rest) > 1 {
		delete(rest, producer.HeaderID)
		header, err := json.Marshal(rest)
		if err != nil {
			return record{}, err
		}
		r.header = string(header)
	}
	if purpose, generation := m.Header.Get(producer.HeaderPurpose),
		m.Header.Get(producer.HeaderGeneration); purpose+generation != "" {
		r.copy = fmt.Sprintf("%q %q", purpose, generation) // quoted: no two pairs look alike
	}
	if !m.NotBefore.IsZero() {
		r.notBefore = max(1, m.NotBefore.Add(time.Microsecond-1).UnixMicro()) // rounded up: never early
	}
	r.number = rowNumber(r, 0)
	return r, nil
}

// headerType is the CloudEvents attribute type, as it stands in a header.
const headerType = "ce_type"

// uuid7 is a UUIDv7 in its usual form.
var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// rowNumber is 64 bits of a hash of what names a row, or another 64 bits for each try, because two messages may share
// some. That of an ID with a time in it begins with this time, in units of 1.024 s: rows that are written at about the
// same time then lie close together in the index, and a checkpoint makes less of it be written again.
func rowNumber(r record, try int) int64 {
	hash := ids.Derive("oncemill/outbox", r.message.Topic, r.message.ID, r.copy, strconv.Itoa(try))
	n := fromHex(hash[:8])<<32 | fromHex(hash[len(hash)-8:]) // neither has the bits of the version or the variant
	if id := r.message.ID; uuid7.MatchString(id) {
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

// partition is the number of the lock that a key shares with others. Stored nowhere, but it must never change: programs
// of several versions write to one outbox.
func partition(key string, partitions int) int64 {
	h := fnv.New64a()
	h.Write([]byte(key))
	return int64(h.Sum64() % uint64(partitions))
}

const (
	maxPayload    = 256 << 20
	maxOrderedKey = 1024 // an index holds it
)

// Times are kept as microseconds since 1970.
var (
	firstTime = time.Unix(0, 0)
	endOfTime = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// validate refuses what PostgreSQL would not take, or not give back as it is: here, because an error of PostgreSQL's
// ends the caller's transaction.
func (o *Outbox) validate(m producer.Message) error {
	if m.Topic == "" {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.Topic", Problem: "is empty"}
	}
	if at := m.NotBefore; !at.IsZero() && (at.Before(firstTime) || !at.Before(endOfTime)) {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.NotBefore",
			Problem: fmt.Sprintf("is in the year %d, want 1970 to 9999", at.UTC().Year())}
	}
	if n := len(m.Payload); n > maxPayload {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.Payload",
			Problem: fmt.Sprintf("has %d bytes, want at most %d", n, maxPayload)}
	}
	if n := len(m.Key); o.cfg.Ordered && n > maxOrderedKey {
		return &dedupstore.InvalidError{Package: "pgoutbox", Field: "Message.Key",
			Problem: fmt.Sprintf("has %d bytes, want at most %d in an ordered outbox", n, maxOrderedKey)}
	}
	for _, text := range [...]struct{ field, value string }{
		{"Message.ID", m.ID}, {"Message.Topic", m.Topic}, {"Message.Key", m.Key},
		{"header " + headerType, m.Header.Get(headerType)},
	} {
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) {
			return &dedupstore.InvalidError{Package: "pgoutbox", Field: text.field,
				Problem: fmt.Sprintf("is not valid UTF-8 without zero bytes: %.600q", text.value)}
		}
	}
	for name, value := range m.Header {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return &dedupstore.InvalidError{Package: "pgoutbox", Field: fmt.Sprintf("header %q", name),
				Problem: fmt.Sprintf("is not valid UTF-8: %.600q", value)}
		}
	}
	return nil
}
