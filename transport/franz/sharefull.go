package franz

import (
	"context"
	"sync"
	"time"
)

// takenMost is how many times MaxInFlight a worker takes at most, with records that wait.
const takenMost = 10

// inFlight says how many records a worker has.
type inFlight struct {
	places
	most    int           // MaxInFlight
	changed chan struct{} // holds a token when there may be room

	mu      sync.Mutex
	total   int
	waiting int                // of them, for their time, which takes no room
	resting map[*rest]struct{} // those of them that nobody has stopped
}

// came says that so many records have come, or are settled.
func (f *inFlight) came(n int) { f.count(n, 0) }

// goOn says that a record whose rest was stopped waits no longer.
func (f *inFlight) goOn() { f.count(0, -1) }

func (f *inFlight) count(total, waiting int) {
	f.mu.Lock()
	f.total += total
	f.waiting += waiting
	f.mu.Unlock()
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// rest says that a record waits, until goOn.
func (f *inFlight) rest(w *rest) {
	f.mu.Lock()
	f.resting[w] = struct{}{}
	f.mu.Unlock()
	f.count(0, 1)
}

// stop stops a rest, and reports false if something else has.
func (f *inFlight) stop(w *rest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, rests := f.resting[w]
	delete(f.resting, w)
	return rests
}

// stopAll stops the rests that are some of those.
func (f *inFlight) stopAll(those func(*rest) bool) (stopped []*rest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.resting {
		if those(w) {
			stopped = append(stopped, w)
			delete(f.resting, w)
		}
	}
	return stopped
}

// room waits until there is room for more, and reports false if ctx ends before.
func (f *inFlight) room(ctx context.Context) bool {
	for ctx.Err() == nil {
		f.mu.Lock()
		room := f.total/takenMost < f.most && f.total-f.waiting < f.most // a product could overflow
		f.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
		}
	}
	return false
}

// full reports whether nothing more comes because of records that wait, and how many do.
func (f *inFlight) full() (waiting int, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting, f.total/takenMost >= f.most && f.total-f.waiting < f.most
}

// relieveEvery is how often records are looked for that wait and keep others from being delivered.
const relieveEvery = time.Second

// relieve has records go on as copies that wait while half as many as the broker delivers beyond them have come: soon
// it would deliver nothing more.
func (s *shareSession) relieve(ctx context.Context) {
	if waiting, _ := s.inFlight.full(); s.rules.locks == 0 || waiting == 0 {
		return
	}
	spans := s.locks.spans()
	for _, w := range s.inFlight.stopAll(func(w *rest) bool {
		last := spans[place{w.record.Topic, w.record.Partition}].last
		return w.moves && last-w.record.Offset >= int64(s.rules.locks/2) && time.Now().After(w.record.movesAt)
	}) {
		if s.begin() {
			s.pool.Go(func() { w.move(ctx) })
		} else {
			s.giveBack(ctx, w.record.Record)
			s.inFlight.goOn()
		}
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
