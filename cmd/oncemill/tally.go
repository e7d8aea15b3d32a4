package main

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A tally counts IDs exactly. It keeps a sighting of each message. If there are too many for memory, it sorts them,
// writes them to a temporary folder, and merges what it has written at the end.
type tally struct {
	most int // sightings in memory
	seen []sighting
	dir  string   // empty: nothing is written yet
	runs []string // files of sorted sightings
}

// A sighting is one message. Its ID is kept as a hash: its text is read again where it is needed.
type sighting struct {
	hash  [16]byte
	at    int64 // Unix time in nanoseconds
	place place
	kind  uint8 // index of kinds
}

// A place is where a broker keeps a message.
type place struct {
	offset    int64
	partition int32
}

// kinds are the kinds of IDs that an audit can find.
var kinds = []producer.Source{
	producer.SourceMessageID, producer.SourceCloudEvent, producer.SourceNatsMsgID, producer.SourceIdempotencyKey,
	producer.SourceDebezium, producer.SourceWatermillUUID, producer.SourceHeader, sourcePayload,
}

func newTally(most, expected int) *tally {
	return &tally{most: most, seen: make([]sighting, 0, min(most, expected))}
}

func (t *tally) add(id producer.Identity, at time.Time, where place) error {
	if len(t.seen) == t.most {
		if err := t.spill(); err != nil {
			return err
		}
	}
	sum := sha256.Sum256([]byte(id.ID))
	s := sighting{at: at.UnixNano(), place: where, kind: uint8(slices.Index(kinds, id.Source))}
	copy(s.hash[:], sum[:])
	t.seen = append(t.seen, s)
	return nil
}

// order has the copies of an ID side by side, in the order of their times.
func order(a, b sighting) int {
	if c := bytes.Compare(a.hash[:], b.hash[:]); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.place.partition, b.place.partition),
		cmp.Compare(a.place.offset, b.place.offset))
}

// spill writes what is in memory to a file.
func (t *tally) spill() (err error) {
	if t.dir == "" {
		if t.dir, err = os.MkdirTemp("", "oncemill-audit-"); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(t.dir, strconv.Itoa(len(t.runs))))
	if err != nil {
		return err
	}
	slices.SortFunc(t.seen, order)
	w := bufio.NewWriterSize(f, 1<<20)
	var line [sightingSize]byte
	for i := range t.seen {
		t.seen[i].encode(&line)
		_, _ = w.Write(line[:]) // Flush tells
	}
	t.runs, t.seen = append(t.runs, f.Name()), t.seen[:0]
	return errors.Join(w.Flush(), f.Close())
}

const sightingSize = 16 + 8 + 8 + 4 + 1

func (s *sighting) encode(line *[sightingSize]byte) {
	copy(line[:16], s.hash[:])
	binary.BigEndian.PutUint64(line[16:], uint64(s.at))
	binary.BigEndian.PutUint64(line[24:], uint64(s.place.offset))
	binary.BigEndian.PutUint32(line[32:], uint32(s.place.partition))
	line[36] = s.kind
}

func (s *sighting) decode(line *[sightingSize]byte) {
	copy(s.hash[:], line[:16])
	s.at = int64(binary.BigEndian.Uint64(line[16:]))
	s.place.offset = int64(binary.BigEndian.Uint64(line[24:]))
	s.place.partition = int32(binary.BigEndian.Uint32(line[32:]))
	s.kind = line[36]
}

// close removes what was written.
func (t *tally) close() error {
	if t.dir == "" {
		return nil
	}
	return os.RemoveAll(t.dir)
}

// each calls do with all sightings in order, once.
func (t *tally) each(do func(sighting)) error {
	slices.SortFunc(t.seen, order)
	rest := t.seen
	all := merging{{next: func() (s sighting, err error) {
		if len(rest) == 0 {
			return s, io.EOF
		}
		s, rest = rest[0], rest[1:]
		return s, nil
	}}}
	for _, name := range t.runs {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		r := bufio.NewReaderSize(f, 1<<16)
		var line [sightingSize]byte
		all = append(all, &sortedRun{next: func() (s sighting, err error) {
			if _, err = io.ReadFull(r, line[:]); err == nil {
				s.decode(&line)
			}
			return s, err
		}})
	}
	return all.each(do)
}

// A sortedRun is one run of sorted sightings.
type sortedRun struct {
	head sighting
	next func() (sighting, error) // io.EOF: no more
}

// merging are runs, as a heap.
type merging []*sortedRun

func (m merging) Len() int           { return len(m) }
func (m merging) Less(i, j int) bool { return order(m[i].head, m[j].head) < 0 }
func (m merging) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *merging) Push(x any)        { *m = append(*m, x.(*sortedRun)) }
func (m *merging) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	*m = (*m)[:last]
	return x
}

func (m merging) each(do func(sighting)) error {
	var live merging
	for _, run := range m {
		switch head, err := run.next(); {
		case err == nil:
			run.head = head
			live = append(live, run)
		case !errors.Is(err, io.EOF):
			return err
		}
	}
	heap.Init(&live)
	for len(live) > 0 {
		do(live[0].head)
		switch head, err := live[0].next(); {
		case err == nil:
			live[0].head = head
			heap.Fix(&live, 0)
		case errors.Is(err, io.EOF):
			heap.Pop(&live)
		default:
			return err
		}
	}
	return nil
}

// spans are how far apart copies are. It keeps them to a precision of 1 %, and the longest exactly.
type spans struct {
	counts map[time.Duration]int
	n      int
	max    time.Duration
}

func (s *spans) add(d time.Duration) {
	if s.counts == nil {
		s.counts = map[time.Duration]int{}
	}
	s.max = max(s.max, d)
	s.n++
	if cut := bits.Len64(uint64(d)) - 8; cut > 0 {
		d = d >> cut << cut
	}
	s.counts[d]++
}

// share is the span that a share of all do not exceed.
func (s *spans) share(part float64) time.Duration {
	lengths := make([]time.Duration, 0, len(s.counts))
	for d := range s.counts {
		lengths = append(lengths, d)
	}
	slices.Sort(lengths)
	left := int(part*float64(s.n) + 0.999999)
	for _, d := range lengths {
		if left -= s.counts[d]; left <= 0 {
			return d
		}
	}
	return s.max
}
