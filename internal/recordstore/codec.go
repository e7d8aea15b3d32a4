package recordstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// version is the first byte of a record. Another layout gets another one.
const version = 1

// States and kinds by their bytes. No record has state 0, and one without an outcome has kind 0.
var (
	states = [...]dedupstore.State{
		"", dedupstore.Running, dedupstore.Retryable, dedupstore.Publishing, dedupstore.Finished,
	}
	kinds = [...]dedupstore.Kind{"", dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}
)

// Flags of a record.
const (
	started = 1 << iota
	exhausted
	truncated
	crashed // the number of crashes comes after the other numbers
)

var (
	errEmpty  = errors.New("is empty")
	errBroken = errors.New("is cut off or damaged")
)

// Encode returns a record in a compact form: some 200 bytes, and what its outcome takes. Times are microseconds: what
// ends in between ends later. The record is not absent.
func Encode(s *dedupstore.Stored) []byte {
	b := make([]byte, 0, 256+len(s.Outcome.Result))
	var flags byte
	if s.Started {
		flags |= started
	}
	if s.Outcome.Exhausted {
		flags |= exhausted
	}
	if s.Outcome.Truncated {
		flags |= truncated
	}
	if s.Crashes > 0 {
		flags |= crashed
	}
	state, kind := slices.Index(states[:], s.State), slices.Index(kinds[:], s.Outcome.Kind)
	b = append(b, version, byte(state), flags, byte(kind))
	e := encoder{b, int64(s.Fence)}
	e.number(s.Fence)
	for _, n := range [...]int{s.Attempts, s.Returned, s.Reruns, s.Duplicates} {
		e.number(uint64(n))
	}
	if s.Crashes > 0 {
		e.number(uint64(s.Crashes))
	}
	for _, t := range [...]time.Time{s.Lease, s.Due, s.Expires, s.First, s.Claimed, s.Ended, s.LastDuplicate} {
		e.time(t)
	}
	decided := uint64(0)
	if s.Decided != 0 {
		decided = s.Fence - s.Decided + 1
	}
	e.number(decided)
	for _, text := range [...]string{
		s.Owner, s.Holder, s.Trace, s.Fingerprint.Scheme, s.Fingerprint.Sum, s.Outcome.Reason, string(s.Outcome.Result),
	} {
		e.text(text)
	}
	e.number(uint64(len(s.Settled)))
	for _, owner := range s.Settled {
		e.text(owner)
	}
	e.number(uint64(len(s.History)))
	for _, past := range s.History {
		e.time(past.Claimed)
		e.time(past.Ended)
		e.text(past.Holder)
		e.text(past.Reason)
	}
	e.produced(s.Outcome.Produced)
	return e.b
}

// Growth is how much larger a record may become until what it produced is published: those who take over add to its
// history. A record without room for that could never be taken over.
func Growth(s *dedupstore.Stored) int {
	if s.State == dedupstore.Publishing && s.Decided == s.Fence {
		return 1 << 10
	}
	return 0
}

// An encoder appends numbers, texts behind their lengths, and times as distances from the fence.
type encoder struct {
	b    []byte
	from int64
}

func (e *encoder) number(n uint64) { e.b = binary.AppendUvarint(e.b, n) }

func (e *encoder) text(s string) {
	e.number(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.number(0)
		return
	}
	distance := t.Add(time.Microsecond-1).UnixMicro() - e.from
	e.number(uint64(distance)<<1 ^ uint64(distance>>63) + 1) // zigzag, for times before the fence
}

func (e *encoder) produced(produced []dedupstore.Produced) {
	e.number(uint64(len(produced)))
	for _, p := range produced {
		e.text(p.ID)
		e.text(p.Topic)
		e.text(p.Key)
		if p.Payload == nil { // which is another message than an empty one
			e.number(0)
		} else {
			e.number(1)
			e.text(string(p.Payload))
		}
		e.number(uint64(len(p.Header)))
		for _, name := range slices.Sorted(maps.Keys(p.Header)) {
			e.text(name)
			e.text(p.Header[name])
		}
	}
}

// Decode reads what Encode wrote. The error says what is wrong with the bytes, such as that another version wrote them;
// it is the Problem of a [dedupstore.RecordError].
func Decode(b []byte) (s dedupstore.Stored, err error) {
	const head = 4
	switch {
	case len(b) == 0:
		return s, errEmpty
	case b[0] != version:
		return s, fmt.Errorf("is of version %d, this program reads version %d: a newer program, or something else, "+
			"wrote it", b[0], version)
	case len(b) < head || b[1] == 0 || int(b[1]) >= len(states) || int(b[3]) >= len(kinds):
		return s, errBroken
	}
	s.State, s.Started = states[b[1]], b[2]&started != 0
	s.Outcome = dedupstore.Outcome{
		Kind: kinds[b[3]], Exhausted: b[2]&exhausted != 0, Truncated: b[2]&truncated != 0,
	}
	d := decoder{rest: b[head:]}
	s.Fence = d.number()
	d.from = int64(s.Fence)
	for _, n := range [...]*int{&s.Attempts, &s.Returned, &s.Reruns, &s.Duplicates} {
		*n = int(d.number())
	}
	if b[2]&crashed != 0 {
		s.Crashes = int(d.number())
	}
	for _, t := range [...]*time.Time{&s.Lease, &s.Due, &s.Expires, &s.First, &s.Claimed, &s.Ended, &s.LastDuplicate} {
		*t = d.time()
	}
	if decided := d.number(); decided > 0 {
		s.Decided = s.Fence - decided + 1
	}
	var result string
	for _, text := range [...]*string{
		&s.Owner, &s.Holder, &s.Trace, &s.Fingerprint.Scheme, &s.Fingerprint.Sum, &s.Outcome.Reason, &result,
	} {
		*text = d.text()
	}
	if result != "" {
		s.Outcome.Result = []byte(result)
	}
	for range d.count() {
		s.Settled = append(s.Settled, d.text())
	}
	for range d.count() {
		s.History = append(s.History, dedupstore.Attempt{
			Claimed: d.time(), Ended: d.time(), Holder: d.text(), Reason: d.text(),
		})
	}
	s.Outcome.Produced = d.produced()
	if d.bad || len(d.rest) > 0 || s.Fence == 0 {
		return dedupstore.Stored{}, errBroken
	}
	return s, nil
}

// A decoder reads what an encoder wrote. Once something is wrong, it reads nothing more.
type decoder struct {
	rest []byte
	from int64
	bad  bool
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	if d.bad || size <= 0 {
		d.bad, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

// count reads a number of things of which each takes at least a byte, or the length of a text.
func (d *decoder) count() int {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.bad, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) time() time.Time {
	n := d.number()
	if n == 0 {
		return time.Time{}
	}
	n--
	return time.UnixMicro(d.from + (int64(n>>1) ^ -int64(n&1)))
}

func (d *decoder) produced() (produced []dedupstore.Produced) {
	for range d.count() {
		p := dedupstore.Produced{ID: d.text(), Topic: d.text(), Key: d.text()}
		if d.number() > 0 {
			p.Payload = []byte(d.text())
		}
		for i := range d.count() {
			if i == 0 {
				p.Header = map[string]string{}
			}
			name := d.text()
			p.Header[name] = d.text()
		}
		produced = append(produced, p)
	}
	return produced
}
