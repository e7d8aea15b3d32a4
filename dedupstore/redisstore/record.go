package redisstore

import (
	"crypto/sha256"
	bits "encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The layout of a record stands in record.lua. Here it is written and read by the client.

const (
	layoutVersion = '1'
	headSize      = 27
	fenceSize     = 16
	countSize     = 10
	tagSize       = 8
	leaseSize     = 16
	tookSize      = 8
	traceSize     = 25

	maxFence = 1<<53 - 2  // what Lua counts exactly, with one to grow
	maxTook  = 99_999_999 // ms
)

// The states of a record, as its second byte says them.
const (
	stateRunning    = 'R'
	stateStarted    = 'S'
	stateRetryable  = 'T'
	statePublishing = 'P' // decided by its owner
	stateToPublish  = 'Q' // its owner only got it to publish
	stateDone       = 'D'
	statePublished  = 'E' // done by an owner that only got it to publish
)

var states = map[byte]dedupstore.State{
	stateRunning: dedupstore.Running, stateStarted: dedupstore.Running, stateRetryable: dedupstore.Retryable,
	statePublishing: dedupstore.Publishing, stateToPublish: dedupstore.Publishing,
	stateDone: dedupstore.Finished, statePublished: dedupstore.Finished,
}

var kinds = map[byte]dedupstore.Kind{
	's': dedupstore.Succeeded, 'f': dedupstore.Failed, 'x': dedupstore.Failed, 'u': dedupstore.Unknown,
}

// kindOf is the third byte of a record with the outcome.
func kindOf(o *dedupstore.Outcome) byte {
	if o.Exhausted {
		return 'x'
	}
	return o.Kind[0]
}

// fixedSections are the sections of a size that their letter tells, and what those of digits are less than.
var fixedSections = map[byte]struct {
	size int
	most uint64 // 0: it is no number
}{
	'a': {10, math.MaxInt32}, 'n': {10, math.MaxInt32}, 'b': {16, maxFence + 1}, 'e': {16, maxFence + 1},
	'f': {20, 0}, 't': {traceSize, 0}, 'd': {16, maxFence + 1}, 'h': {8, 0}, 'k': {tookSize, maxTook + 1}, 'X': {0, 0},
	'o': {0, 0},
	'l': {leaseSize, maxFence + 1}, 'L': {leaseSize, maxFence + 1},
}

// lengthSize is how many hexadecimal digits tell the size of a section that may have any, other than a holder.
const lengthSize = 8

func lengthOf(letter byte) int {
	if letter == 'w' {
		return 2
	}
	return lengthSize
}

// appendTag appends what a record keeps of an owner's token: 64 bits of its hash (FNV-1a). Tokens are random. Package
// hash/fnv would allocate three times.
func appendTag(b []byte, owner string) []byte {
	sum := uint64(14695981039346656037)
	for i := range len(owner) {
		sum = (sum ^ uint64(owner[i])) * 1099511628211
	}
	return bits.BigEndian.AppendUint64(b, sum)
}

// appendOwner appends the fence and the tag of a claim.
func appendOwner(b []byte, c *dedupstore.Claim) []byte {
	return appendTag(appendDigits(b, c.Fence, fenceSize), c.Owner)
}

// appendRequest appends the owner's tag and the sections of a request, the lease last.
func appendRequest(b []byte, r *dedupstore.Request) []byte {
	b = appendTag(b, r.Owner)
	if !r.Fingerprint.IsZero() {
		b = appendFingerprint(append(b, 'f'), r.Fingerprint)
	}
	b = appendTrace(b, r.Trace)
	if r.Holder != "" {
		b = appendText(b, 'w', r.Holder)
	}
	return appendDigits(append(b, 'L'), 1000*uint64(milliseconds(r.Lease)), leaseSize)
}

// appendFingerprint appends 32 bits of the SHA-256 of the scheme, and 128 bits of that of scheme and sum. Two contents
// do not share 128 bits by chance. An attacker who chooses both contents and the ID needs about 2^64 tries. All he
// gains is that his second message counts as a copy of his first.
func appendFingerprint(b []byte, f dedupstore.Fingerprint) []byte {
	const most = 200 // that it takes no memory for
	text := append(append(append(make([]byte, 0, most), f.Scheme...), ':'), f.Sum...)
	last := lastScheme.Load()
	if last == nil || last.scheme != f.Scheme {
		last = &schemeSum{f.Scheme, sha256.Sum256(text[:len(f.Scheme)])}
		lastScheme.Store(last)
	}
	sum := sha256.Sum256(text)
	return append(append(b, last.sum[:4]...), sum[:16]...)
}

// A schemeSum is the SHA-256 of a scheme's name. Most programs have one scheme.
type schemeSum struct {
	scheme string
	sum    [sha256.Size]byte
}

var lastScheme atomic.Pointer[schemeSum]

// appendTrace appends a traceparent (W3C Trace Context, section 3.2), in 25 bytes if it is of version 00.
func appendTrace(b []byte, trace string) []byte {
	if len(trace) == len("00-")+2*traceSize+len("--") {
		packed, again := append(b, 't'), make([]byte, 0, 64) //nolint:gocritic // b stays if that fails
		for _, digits := range [...]string{trace[3:35], trace[36:52], trace[53:]} {
			packed, _ = hex.AppendDecode(packed, []byte(digits)) // if it cannot, the comparison finds out
		}
		if value := packed[len(b)+1:]; len(value) == traceSize && string(appendTraceparent(again, value)) == trace {
			return packed
		}
	}
	if trace == "" {
		return b
	}
	return appendText(b, 'T', trace)
}

func appendTraceparent(b, packed []byte) []byte {
	b = hex.AppendEncode(append(b, "00-"...), packed[:16])
	b = hex.AppendEncode(append(b, '-'), packed[16:24])
	return hex.AppendEncode(append(b, '-'), packed[24:])
}

// appendTook appends how long a run took, if that is known.
func appendTook(b []byte, took time.Duration) []byte {
	if took <= 0 {
		return b
	}
	return appendDigits(append(b, 'k'), uint64(min(milliseconds(took), maxTook)), tookSize)
}

// appendText appends a section of any size.
func appendText[T string | []byte](b []byte, letter byte, text T) []byte {
	return append(fmt.Appendf(append(b, letter), "%0*x", lengthOf(letter), len(text)), text...)
}

func appendDigits(b []byte, n uint64, width int) []byte {
	var space [20]byte
	s := strconv.AppendUint(space[:0], n, 10)
	for range width - len(s) {
		b = append(b, '0')
	}
	return append(b, s...)
}

// A record is what is stored for a key.
type record struct {
	state, kind byte
	fence       uint64
	owner       string // tag
	sections
}

// sections are the values of a record's sections by their letters.
type sections map[byte]string

func (t sections) has(letter byte) bool {
	_, there := t[letter]
	return there
}

// number is a section of digits, or what it is without.
func (t sections) number(letter byte, without uint64) uint64 {
	if !t.has(letter) { // ParseUint would make an error of that
		return without
	}
	n, err := strconv.ParseUint(t[letter], 10, 64)
	if err != nil {
		return without
	}
	return n
}

// decodeRecord takes a record apart.
func decodeRecord(s string) (rec record, err error) {
	if len(s) < headSize || s[0] != layoutVersion {
		return rec, fmt.Errorf("begins with %q, this program reads version %q", s[:min(1, len(s))], layoutVersion)
	}
	rec = record{state: s[1], kind: s[2], owner: s[3+fenceSize : headSize]}
	rec.fence, err = strconv.ParseUint(s[3:3+fenceSize], 10, 64)
	running := strings.IndexByte("RST", rec.state) >= 0
	if err != nil || rec.fence == 0 || rec.fence > maxFence || states[rec.state] == "" ||
		running != (rec.kind == '-') || !running && kinds[rec.kind] == "" {
		return record{}, fmt.Errorf("begins with %q", s[:3+fenceSize])
	}
	if rec.sections, err = decodeSections(s[headSize:]); err != nil {
		return record{}, err
	}
	return rec, nil
}

// decodeSections takes sections apart, also those that only a later version knows.
func decodeSections(rest string) (sections, error) {
	t := sections{}
	for rest != "" {
		letter := rest[0]
		value, after, ok := cutSection(rest)
		if most := fixedSections[letter].most; ok && most > 0 {
			n, err := strconv.ParseUint(value, 10, 64)
			ok = err == nil && n < most
		}
		if !ok || t.has(letter) {
			return nil, fmt.Errorf("has a section %q that cannot be read", letter)
		}
		t[letter], rest = value, after
	}
	return t, nil
}

// cutSection takes off the first section.
func cutSection(s string) (value, rest string, ok bool) {
	letter, rest := s[0], s[1:]
	if section, fixed := fixedSections[letter]; fixed {
		size := min(section.size, len(rest))
		return rest[:size], rest[size:], size == section.size
	}
	if letter|0x20 < 'a' || letter|0x20 > 'z' {
		return "", "", false
	}
	return cutText(rest, lengthOf(letter))
}

// cutText takes off a text behind its length, of so many digits.
func cutText(s string, digits int) (text, rest string, ok bool) {
	if len(s) < digits {
		return "", "", false
	}
	size, err := strconv.ParseUint(s[:digits], 16, 32)
	if rest = s[digits:]; err != nil || int(size) > len(rest) {
		return "", "", false
	}
	return rest[:size], rest[size:], true
}

// first is when the first claim came; decided is the fence under which the outcome was decided.
func (rec *record) first() uint64   { return rec.number('b', rec.fence) }
func (rec *record) decided() uint64 { return rec.number('e', rec.fence) }

// until is when the lease ends, or a retry is due. 0: the record waits for neither.
func (rec *record) until() uint64 {
	lease := rec.number('l', 0)
	if rec.has('L') {
		lease = rec.fence + rec.number('L', 0)
	}
	return max(lease, rec.number('d', 0))
}

// since is the time from one to another, or zero if there is none.
func since(from, to uint64) time.Duration {
	if to <= from || to-from > math.MaxInt64/1000 {
		return 0
	}
	return time.Duration(to-from) * time.Microsecond
}

func (rec *record) trace() string {
	if rec.has('t') {
		return string(appendTraceparent(nil, []byte(rec.sections['t'])))
	}
	return rec.sections['T']
}

// outcome reads the outcome, with headers and payloads of what it produced if they are still to be published.
func (rec *record) outcome(content bool) (dedupstore.Outcome, error) {
	o := dedupstore.Outcome{
		Kind: kinds[rec.kind], Exhausted: rec.kind == 'x', Reason: rec.sections['M'], Truncated: rec.has('X'),
	}
	if result := rec.sections['B']; result != "" {
		o.Result = []byte(result)
	}
	var err error
	if o.Produced, err = decodeProduced(rec.sections['K'], rec.sections['C'], content); err != nil {
		return o, fmt.Errorf("has produced messages that cannot be read: %w", err)
	}
	return o, nil
}
