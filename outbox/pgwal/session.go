package pgwal

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A session is the work of one connection. One goroutine, the loop, owns all of it; jobs beside it publish, record and
// look, and hand the loop what is to be done about that.
type session struct {
	r      *Relay
	stream *stream
	facts  facts

	progress progress
	queue    queue
	looks    looks

	numbers   map[int64]bool // rows that are in memory; true: found in the table, not in the log
	bytes     int            // of payloads that are not acknowledged
	fullSince time.Time      // memory is full, and nothing was acknowledged since; zero: it is not
	fullAcks  int            // acks, then

	done  chan func()
	jobs  int
	fresh outlet
	slow  outlet
	apart int // calls of the publisher with one suspect each
	acks  int // calls that acknowledged something

	verdicts []verdict
	settling bool
	settleAt time.Time

	broken error // why the session ends; nil: it goes on
}

func newSession(r *Relay, stream *stream, f facts) *session {
	now := time.Now()
	return &session{
		r: r, stream: stream, facts: f,
		numbers: map[int64]bool{}, done: make(chan func()), fresh: newOutlet(), slow: newOutlet(),
		queue: queue{keys: map[string][]*row{}, together: r.cfg.MaxInFlight == 1},
		looks: looks{
			at: now, watchAt: now.Add(r.limits.watchInterval), finds: restSize,
		},
	}
}

// run works until the connection fails or ctx ends, and leaves nothing behind.
func (s *session) run(ctx context.Context) error {
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	in, bursts, ended := newIntake(), make(chan []event), make(chan error, 2)
	var feeders sync.WaitGroup
	feeders.Go(func() { ended <- s.r.explain("read the log", s.stream.read(reading, in)) })
	feeders.Go(func() {
		if err := s.feed(reading, in, bursts); err != nil {
			ended <- err
		}
	})

	err := s.loop(ctx, working, bursts, ended)
	stopReading()
	s.finishJobs(stopWorking)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.r.limits.storeTimeout)
	defer cancel()
	rest := s.verdicts
	s.verdicts = nil
	s.record(last, rest)
	s.finishJobs(stopWorking)
	if n := len(s.verdicts); n > 0 {
		s.r.log.WarnContext(ctx, "pgwal: results could not be recorded, messages may be published again", "messages", n)
	}
	s.stream.leave(s.progress.confirmed())
	feeders.Wait()
	return err
}

// feed hands on together what has been read. What was written before this connection is looked up in the table first:
// it may be settled.
func (s *session) feed(ctx context.Context, from *intake, to chan<- []event) error {
	for behind := true; ; {
		burst := from.take(ctx)
		if behind {
			if err := s.r.lookUp(ctx, burst); err != nil {
				return err
			}
			behind = !slices.ContainsFunc(burst, func(e event) bool {
				return e.kind == committed &&
					e.lsn >= s.facts.end
			})
		}
		select {
		case to <- burst:
		case <-ctx.Done():
			return nil
		}
	}
}

// loop is the only one that touches the state.
func (s *session) loop(ctx, working context.Context, bursts <-chan []event, ended <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := s.tick(working, time.Now()); err != nil {
			return err
		}
		var in <-chan []event
		if s.room() > 0 {
			in = bursts
		}
		timer.Reset(time.Until(s.nextTick()))
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case burst := <-in:
			if err := s.take(burst); err != nil {
				return err
			}
		case act := <-s.done:
			s.jobs--
			act()
		case <-timer.C:
		}
	}
}

// room is how many messages more can be in memory.
func (s *session) room() int {
	if s.bytes >= s.r.limits.maxPendingBytes {
		return 0
	}
	return max(0, s.r.limits.maxPending-len(s.numbers))
}

// warnOfFull says that nothing new is read because all that fits into memory waits, and nothing was acknowledged for a
// while.
func (s *session) warnOfFull(ctx context.Context, now time.Time) {
	switch {
	case s.room() > 0:
		s.fullSince = time.Time{}
	case s.fullSince.IsZero() || s.fullAcks != s.acks:
		s.fullSince, s.fullAcks = now, s.acks
	case now.Sub(s.fullSince) >= s.r.limits.storeTimeout:
		s.r.warn(ctx, "pgwal: nothing new is published: the memory is full of messages that wait",
			"slot", s.r.cfg.Slot, "messages", len(s.numbers), "bytes", s.bytes)
	}
}

// start runs a job beside the loop. What the job returns is done by the loop.
func (s *session) start(job func() (act func())) {
	s.jobs++
	go func() { s.done <- job() }()
}

// take takes in what was read.
func (s *session) take(burst []event) error {
	ping := false
	for _, e := range burst {
		switch e.kind {
		case began:
			s.progress.begin()
		case committed:
			s.progress.commit(e.lsn)
		case alive:
			s.progress.reached(e.lsn)
			ping = ping || e.ping
		case written:
			if e.row != nil { // else it is settled
				e.row.txn = s.progress.add()
				s.admit(e.row)
			}
		}
	}
	if ping {
		return s.stream.confirm(s.progress.confirmed())
	}
	return nil
}

// admit takes a message into memory.
func (s *session) admit(r *row) {
	s.numbers[r.number] = r.txn == nil
	s.bytes += len(r.message.Payload)
	if r.problem == "" {
		s.queue.add(r)
		return
	}
	r.failures++
	s.die(r, r.problem)
}

// forget takes a message out of memory, and settles it in the log: it need not be shown again.
func (s *session) forget(r *row) {
	delete(s.numbers, r.number)
	if r.txn != nil {
		s.progress.done(r.txn)
	}
}

// fail ends the session if an error says that the server stops: it would wait for a relay that has not confirmed
// everything.
func (s *session) fail(err error) {
	if hasCode(err, codeCannotConnectNow) {
		s.broken = errors.New("pgwal: the server stops, and would wait for a relay that has not confirmed everything")
	}
}

// tick does what it is time for.
func (s *session) tick(working context.Context, now time.Time) error {
	if s.broken != nil {
		return s.broken
	}
	s.queue.wake(now)
	s.dispatch(working, now)
	s.settle(working, now)
	s.look(working, now)
	s.warnOfFull(working, now)
	return s.beat(now)
}

// beat tells the server what is settled, and that somebody is here, if it is time for that.
func (s *session) beat(now time.Time) error {
	if settled := s.progress.confirmed(); !now.Before(s.stream.next(settled)) {
		return s.stream.confirm(settled)
	}
	return nil
}

func (s *session) nextTick() time.Time {
	next := s.stream.next(s.progress.confirmed())
	earlier := func(t time.Time, matters bool) {
		if matters && t.Before(next) {
			next = t
		}
	}
	earlier(s.settleAt, len(s.verdicts) > 0 && !s.settling)
	earlier(s.fresh.at, len(s.queue.fresh) > 0 && s.fresh.calls < s.r.cfg.MaxInFlight)
	earlier(s.slow.at, len(s.queue.slow) > 0 && s.slow.calls < s.r.cfg.MaxInFlight)
	earlier(s.looks.at, !s.looks.busy)
	if len(s.queue.waiting) > 0 {
		earlier(s.queue.waiting[0].due, true)
	}
	return next
}

// finishJobs waits for what runs beside the loop, and for what follows from it. The server gets its answers meanwhile.
func (s *session) finishJobs(stopWorking func()) {
	grace := time.NewTimer(s.r.limits.stopTimeout)
	defer grace.Stop()
	ticker := time.NewTicker(confirmEvery)
	defer ticker.Stop()
	alive := true
	for s.jobs > 0 {
		select {
		case act := <-s.done:
			s.jobs--
			act()
		case <-grace.C:
			stopWorking()
		case now := <-ticker.C:
			alive = alive && s.beat(now) == nil // what follows says so, too
		}
	}
}
