package franz

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// inFlightWindows is how many windows of records a worker takes at most, those that wait among them.
const inFlightWindows = 10

// inFlight says how many records a worker has.
type inFlight struct {
	window  int
	changed chan struct{} // holds a token when there may be room

	mu    sync.Mutex
	total int
	// of them: waiting for their time, which takes no room; a token: too many have come after it; nil: it stays
	resting map[*kgo.Record]chan struct{}
}

func (h *inFlight) add(n int) {
	h.mu.Lock()
	h.total += n
	h.mu.Unlock()
	h.tell()
}

// rest says that a record waits, until goOn. The result gets a token when too many have come after it, if it may move
// then.
func (h *inFlight) rest(rec *kgo.Record, moves bool) <-chan struct{} {
	var passed chan struct{}
	if moves {
		passed = make(chan struct{}, 1)
	}
	h.mu.Lock()
	h.resting[rec] = passed
	h.mu.Unlock()
	h.tell()
	return passed
}

func (h *inFlight) goOn(rec *kgo.Record) {
	h.mu.Lock()
	delete(h.resting, rec)
	h.mu.Unlock()
	h.tell()
}

func (h *inFlight) tell() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *inFlight) rests() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.resting)
}

// pass tells records that wait, and are some of those, that too many have come after them.
func (h *inFlight) pass(those func(*kgo.Record) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for rec, passed := range h.resting {
		if those(rec) {
			select {
			case passed <- struct{}{}:
			default:
			}
		}
	}
}

// room waits until there is room for more, and reports false if ctx ends before.
func (h *inFlight) room(ctx context.Context) bool {
	for ctx.Err() == nil {
		h.mu.Lock()
		free := h.total/inFlightWindows < h.window && h.total-len(h.resting) < h.window // a product could overflow
		h.mu.Unlock()
		if free {
			return true
		}
		select {
		case <-h.changed:
		case <-ctx.Done():
		}
	}
	return false
}

// full reports whether nothing more comes because of records that wait, and how many do.
func (h *inFlight) full() (waiting int, full bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.resting), h.total/inFlightWindows >= h.window && h.total-len(h.resting) < h.window
}

// relieveEvery is how often records are looked for that wait and keep others from being delivered.
const relieveEvery = time.Second

// relieve has records go on as copies that wait while half as many as the broker delivers beyond them have come: soon
// it would deliver nothing more.
func (s *shareSession) relieve() {
	if s.rules.locks == 0 || s.inFlight.rests() == 0 {
		return
	}
	ends := map[place]int64{}
	for at, known := range s.locks.spans() {
		if known.last-known.first >= int64(s.rules.locks/2) {
			ends[at] = known.last
		}
	}
	if len(ends) > 0 {
		s.inFlight.pass(func(rec *kgo.Record) bool {
			last, ok := ends[place{rec.Topic, rec.Partition}]
			return ok && last-rec.Offset >= int64(s.rules.locks/2)
		})
	}
}

// sayFull says, once a minute, that records which are not settled keep others from being delivered, until ctx ends.
// Nobody else does.
func (s *shareSession) sayFull(ctx context.Context) {
	tick := time.NewTicker(s.rules.renewal)
	defer tick.Stop()
	var lines limiter
	var before map[place]span
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		spans := s.locks.spans()
		s.sayIfFull(ctx, &lines, before, spans)
		before = spans
	}
}

// sayIfFull looks whether something keeps others from being delivered, and says so. Between its first record that is
// not settled and the last that it has delivered, the broker counts all of a partition, settled or not.
func (s *shareSession) sayIfFull(ctx context.Context, lines *limiter, before, spans map[place]span) {
	if waiting, full := s.inFlight.full(); full {
		if lines.due(sayEvery) {
			s.log.ErrorContext(ctx, "franz: so many records wait that this member gets no others until some of them "+
				"are settled", "group", s.group, "waiting", waiting)
		}
		return
	}
	for at, now := range spans {
		// else they go on
		stands := s.rules.locks > 0 && now.last-now.first+1 >= int64(s.rules.locks) && before[at] == now
		if stands && lines.due(sayEvery) {
			s.log.ErrorContext(ctx, "franz: a record that is not settled keeps all that come after it in its "+
				"partition, from some distance on, from being delivered, to any member",
				"group", s.group, "topic", at.topic, "partition", at.partition, "offset", now.first,
				"delivered_to", now.last, "distance", s.rules.locks)
		}
	}
}
