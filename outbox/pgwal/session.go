package pgwal

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/oncemill/oncemill/internal/pace"
)

// A session is the work of one connection. One goroutine, the loop, owns its state. Jobs beside it publish, record and
// look, and hand their results to the loop.
type session struct {
	r      *Relay
	stream *stream
	facts  facts

	// Everything before shown was shown, except the open transaction of the log. It begins at zero, not at the slot's
	// position: the pool may lead to another server than the log.
	shown    pglogrepl.LSN
	inside   bool
	behind   bool // what the log shows was written before this connection, and may be settled
	lookedUp bool // in the table, is what was read last

	queue queue
	looks looks

	rows  map[rowID]*row // in memory
	bytes int            // of payloads that are not acknowledged
	acks  int            // calls that acknowledged something

	fullSince time.Time // memory is full, and nothing was acknowledged
	fullAcks  int       // acks, then

	done  chan func()
	tasks int

	verdicts map[*row]verdict // to be recorded
	settling bool
	settleAt time.Time // not before
	faults   pace.Pace

	broken error // why the session ends; nil: it goes on
}

// beatEvery is how often the server hears what is settled, and the loop looks for due work.
const beatEvery = 100 * time.Millisecond

func newSession(r *Relay, stream *stream, f facts) *session {
	now := time.Now()
	return &session{
		r: r, stream: stream, facts: f, behind: true, lookedUp: true, queue: newQueue(r.cfg),
		looks: looks{at: now, watchAt: now.Add(r.limits.watchInterval), finds: restSize},
		rows:  map[rowID]*row{}, done: make(chan func()), verdicts: map[*row]verdict{},
		faults: pace.Pace{Shortest: shortestFault, Longest: longestFault},
	}
}

// run works until the connection fails or ctx ends, and leaves nothing behind.
func (s *session) run(ctx context.Context) error {
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	events, bursts, ended := make(chan event, 32), make(chan []event), make(chan error, 1)
	var feeders sync.WaitGroup
	feeders.Go(func() { ended <- s.r.explain("read the log", s.stream.read(reading, events)) })
	feeders.Go(func() { gather(reading, events, bursts) })

	err := s.loop(ctx, working, bursts, ended)
	stopReading()
	s.finishJobs(stopWorking)
	s.settleAt = time.Time{}
	s.settle(context.WithoutCancel(ctx), 1, len(s.verdicts))
	s.finishJobs(stopWorking)
	if n := len(s.verdicts); n > 0 {
		s.r.log.WarnContext(ctx, "pgwal: results could not be recorded, messages may be published again", "messages", n)
	}
	s.stream.leave(s.confirmed())
	feeders.Wait()
	return err
}

// loop is the only one that touches the state.
func (s *session) loop(ctx, working context.Context, bursts <-chan []event, ended <-chan error) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	for s.broken == nil {
		s.dispatch(working)
		s.settle(working, settleSize, settleMost)
		in := bursts
		if s.room() == 0 || !s.lookedUp {
			in = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case burst := <-in:
			s.arrived(working, burst)
		case act := <-s.done:
			s.tasks--
			act()
		case now := <-beat.C:
			s.queue.wake(now)
			s.settle(working, 1, settleMost)
			s.look(working, now)
			s.warnOfFull(working, now)
			if err := s.stream.confirm(s.confirmed()); err != nil {
				return err
			}
		}
	}
	return s.broken
}

// finishJobs waits for the jobs beside the loop, and for what they start. It answers the server meanwhile.
func (s *session) finishJobs(stopWorking func()) {
	grace := time.NewTimer(s.r.limits.stopTimeout)
	defer grace.Stop()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	alive := true
	for s.tasks > 0 {
		select {
		case act := <-s.done:
			s.tasks--
			act()
		case <-grace.C:
			stopWorking()
		case <-beat.C:
			alive = alive && s.stream.confirm(s.confirmed()) == nil // leave says so, too
		}
	}
}

// start runs a job beside the loop. The loop runs the function that the job returns.
func (s *session) start(task func() (act func())) {
	s.tasks++
	go func() { s.done <- task() }()
}

// room is how many more messages fit into memory.
func (s *session) room() int {
	if s.bytes >= s.r.limits.maxPendingBytes {
		return 0
	}
	return max(0, s.r.limits.maxPending-len(s.rows))
}

// warnOfFull warns that memory is full of waiting messages, that nothing was acknowledged for a while, and that nothing
// new is read.
func (s *session) warnOfFull(ctx context.Context, now time.Time) {
	if s.room() > 0 || s.fullAcks != s.acks || s.fullSince.IsZero() {
		s.fullSince, s.fullAcks = now, s.acks
	} else if now.Sub(s.fullSince) >= s.r.limits.storeTimeout {
		s.r.warn(ctx, "pgwal: nothing new is published: the memory is full of messages that wait",
			"slot", s.r.cfg.Slot, "messages", len(s.rows), "bytes", s.bytes)
	}
}

// arrived takes in what was read. It looks up rows from before this connection in the table first: they may be settled.
func (s *session) arrived(working context.Context, burst []event) {
	if !s.behind {
		s.take(burst)
		return
	}
	s.lookedUp = false
	s.start(func() func() {
		err := s.r.lookUp(working, burst)
		return func() {
			if err != nil {
				s.broken = err
				return
			}
			s.lookedUp = true
			s.take(burst)
			s.behind = s.shown < s.facts.end
		}
	})
}

func (s *session) take(burst []event) {
	for _, e := range burst {
		switch e.kind {
		case began:
			s.inside = true
		case written:
			if e.row != nil { // else it is settled
				e.row.logged, e.row.before = true, s.shown
				s.admit(e.row)
			}
		case committed, alive:
			s.inside = s.inside && e.kind != committed
			if !s.inside {
				s.shown = max(s.shown, e.lsn)
			}
		}
	}
}

// admit takes a message into memory.
func (s *session) admit(r *row) {
	s.rows[r.rowID] = r
	s.bytes += len(r.message.Payload)
	if r.problem == "" {
		s.queue.add(r)
		return
	}
	r.failures++
	s.die(r, r.problem)
}

// confirmed is the place up to which everything is settled: the log need not show it again.
func (s *session) confirmed() pglogrepl.LSN {
	settled := s.shown
	for _, r := range s.rows {
		if r.logged {
			settled = min(settled, r.before)
		}
	}
	return settled
}

// fail ends the session if an error says that the server is stopping: the server would wait for a relay that has not
// confirmed everything.
func (s *session) fail(err error) {
	if hasCode(err, codeCannotConnectNow) {
		s.broken = errors.New("pgwal: the server stops, and would wait for a relay that has not confirmed everything")
	}
}
