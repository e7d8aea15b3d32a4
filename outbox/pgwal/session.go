package pgwal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
)

// A session is the work of one connection. One goroutine, the loop, owns all of it; jobs beside it publish, record and
// look, and hand the loop what is to be done about that.
type session struct {
	r      *Relay
	stream *stream
	facts  facts
	known  *memory // from the connection before

	transit atomic.Int64  // bytes of payloads between reader and loop
	drained chan struct{} // there are fewer

	progress progress
	queue    queue
	late     []late

	numbers   map[int64]bool // rows of the table that are in memory; true: found there, not in the log
	unsettled int            // messages in memory
	bytes     int            // of payloads that are not acknowledged

	done  chan func()
	jobs  int
	fresh outlet
	slow  outlet
	apart int // calls of the publisher with one suspect each
	acks  int // calls that acknowledged something

	unsaid, unsaidOf int       // messages that were not acknowledged, and of how many, since there was a line about it
	unsaidErr        error     // the last
	saidAt           time.Time // that line
	fullAt           time.Time // a line about a memory that is full
	fullSince        time.Time // without an acknowledgement; zero: it is not
	fullAcks         int       // acks, then

	verdicts []verdict
	spare    []verdict // memory for the next ones
	settling bool
	settleAt time.Time
	held     bool // some of them cannot be recorded before settleAt

	sent           pglogrepl.LSN // confirmed to the server
	sentAt, beatAt time.Time

	looks looks
	leave bool // the server stops
	other bool // the server, or the table, is not the one that the log is read for
}

func newSession(r *Relay, stream *stream, f facts, known *memory) *session {
	now := time.Now()
	return &session{
		r: r, stream: stream, facts: f, known: known,
		drained: make(chan struct{}, 1), numbers: map[int64]bool{}, done: make(chan func()),
		queue: queue{together: r.cfg.MaxInFlight == 1}, fresh: newOutlet(), slow: newOutlet(),
		beatAt: now, looks: looks{at: now, cleanAt: now, walAt: now.Add(r.watching), cleans: cleanSize, finds: restSize},
	}
}

const (
	transitEvents = 900 // a transaction with one row has three
	transitBytes  = 4 << 20
	burstSize     = 500 // rows
	burstEvents   = 5 * burstSize
	confirmEvery  = 100 * time.Millisecond
	longestBeat   = 5 * time.Second
	shortestAway  = 50 * time.Millisecond // between calls, while the broker acknowledges nothing
	longestAway   = time.Second
)

// run works until the connection fails or ctx ends, and leaves nothing behind.
func (s *session) run(ctx context.Context) error {
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	events, bursts, broken := make(chan event, transitEvents), make(chan []event), make(chan error, 2)
	var feeders sync.WaitGroup
	feeders.Go(func() { broken <- s.stream.read(reading, s.send(events)) })
	feeders.Go(func() {
		if err := s.feed(reading, events, bursts); err != nil {
			broken <- err
		}
	})

	err := s.loop(ctx, working, bursts, broken)
	if err == nil {
		s.finishTxn(bursts, broken)
	}
	stopReading()
	s.finishJobs(stopWorking)
	s.settleLast(ctx)
	s.finishJobs(stopWorking)
	s.catchUp(ctx)
	s.stream.leave(s.progress.confirmed())
	feeders.Wait()
	s.remember()
	return s.readProblem(err)
}

func (s *session) readProblem(err error) error {
	if e, ok := err.(*pgconn.PgError); ok && e.Code == codeUndefinedFile { //nolint:errorlint // as it is, the reader's; its wal_status need not say so
		return &SetupError{fmt.Sprintf("replication slot %q", s.r.cfg.Slot), "needs log that the server does not have, as after a restore of files with the slot among them: call Drop and Setup; rows of the table are published all the same, messages of an Emitter that were not are lost", err}
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return s.r.explain("read the log", err)
	}
	return err
}

// send hands an event on when there is room for it.
func (s *session) send(to chan<- event) func(context.Context, event) {
	return func(ctx context.Context, e event) {
		for s.transit.Load() > transitBytes && ctx.Err() == nil {
			select {
			case <-s.drained:
			case <-ctx.Done():
			}
		}
		if e.row != nil {
			s.transit.Add(int64(len(e.row.message.Payload)))
		}
		select {
		case to <- e:
		case <-ctx.Done():
		}
	}
}

// feed hands on together what has been read. What was written before this connection is looked up in the table first:
// it may be settled.
func (s *session) feed(ctx context.Context, events <-chan event, to chan<- []event) error {
	behind := !s.r.cfg.messages()
	for {
		var burst []event
		select {
		case e := <-events:
			burst = s.gather(e, events)
		case <-ctx.Done():
			return nil
		}
		if behind {
			if err := s.r.lookUp(ctx, burst); err != nil {
				return err
			}
			behind = !slices.ContainsFunc(burst, func(e event) bool { return e.kind == committed && e.lsn >= s.facts.end })
		}
		select {
		case to <- burst:
		case <-ctx.Done():
			return nil
		}
	}
}

// gather takes what is there, and waits for nothing.
func (s *session) gather(e event, events <-chan event) []event {
	burst := append(make([]event, 0, 1+len(events)), e)
	var size int64
	for rows := 0; ; {
		if r := burst[len(burst)-1].row; r != nil {
			rows++
			size += int64(len(r.message.Payload))
		}
		if rows == burstSize || len(burst) == burstEvents || size > transitBytes {
			break
		}
		select {
		case e := <-events:
			burst = append(burst, e)
			continue
		default:
		}
		break
	}
	if size > 0 {
		s.transit.Add(-size)
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
	return burst
}

// loop is the only one that touches the state.
func (s *session) loop(ctx, working context.Context, bursts <-chan []event, broken <-chan error) error {
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
		case err := <-broken:
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

// finishTxn takes the end of the transaction that is being shown, if that comes next: without it, nothing of the transaction
// can be confirmed, although all of it may be published.
func (s *session) finishTxn(bursts <-chan []event, broken <-chan error) {
	t := time.NewTimer(closeTimeout)
	defer t.Stop()
	for s.progress.now != nil {
		select {
		case burst := <-bursts:
			for _, e := range burst {
				if e.kind == committed {
					s.settledTxn(s.progress.commit(e.lsn))
					return
				}
				if e.row != nil {
					return // there is more of it, which is not published any more
				}
			}
		case act := <-s.done:
			s.jobs--
			act()
		case <-broken: //nolint:errcheck // the session ends all the same
			return
		case <-t.C:
			return
		}
	}
}

// room is how many messages more can be in memory.
func (s *session) room() int {
	if s.bytes >= s.r.cfg.MaxPendingBytes {
		return 0
	}
	return max(0, s.r.cfg.MaxPending-s.unsettled)
}

const fullEvery = time.Minute // the log says the same again

// warnOfFull says that nothing new is read because all that fits into memory waits for another attempt, or behind what does, or
// for a first one behind calls that bring nothing.
func (s *session) warnOfFull(ctx context.Context, now time.Time) {
	if s.room() > 0 {
		s.fullSince = time.Time{}
		return
	}
	if s.fullSince.IsZero() || s.fullAcks != s.acks {
		s.fullSince, s.fullAcks = now, s.acks
	}
	busy := s.fresh.calls + s.slow.calls + len(s.queue.fresh) + len(s.queue.slow)
	hopeful := busy > 0 && now.Sub(s.fullSince) < s.r.cfg.PublishTimeout
	if hopeful || len(s.verdicts) > 0 || s.settling || now.Sub(s.fullAt) < fullEvery {
		return
	}
	s.fullAt = now
	s.r.log.WarnContext(ctx, "pgwal: nothing new is published: Config.MaxPending or MaxPendingBytes is full of messages that wait",
		"slot", s.r.cfg.Slot, "messages", s.unsettled, "bytes", s.bytes)
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
			s.progress.begin(e.lsn)
		case committed:
			s.settledTxn(s.progress.commit(e.lsn))
		case alive:
			s.progress.reached(e.lsn)
			ping = ping || e.ping
		case written:
			if e.row != nil { // else it is settled
				e.row.txn = s.progress.add()
				s.admit(e.row, s.known.acked[e.row.origin()])
			}
		}
	}
	if ping {
		return s.confirm(time.Now())
	}
	return nil
}

// admit takes a message into memory.
func (s *session) admit(r *row, acked bool) {
	s.unsettled++
	r.size = len(r.message.Payload)
	s.bytes += r.size
	if r.number != 0 {
		s.numbers[r.number] = r.txn == nil
	}
	switch {
	case acked:
		s.acknowledge(r)
	case r.problem != "":
		s.die(r, r.problem)
	default:
		s.queue.add(r)
	}
}

// tick does what it is time for.
func (s *session) tick(working context.Context, now time.Time) error {
	if s.leave {
		return errors.New("pgwal: the server stops, and would wait for a relay that has not confirmed everything")
	}
	if s.other {
		s.r.cfg.Pool.Reset() // a connection that it has to the old one would have the relay leave the new one again
		return errors.New("pgwal: Config.Pool leads to another server than the one whose log was read, or the outbox table was made anew")
	}
	s.queue.wake(now)
	s.dispatch(working, now)
	s.settle(working, now)
	s.look(working, now)
	s.warnOfFull(working, now)
	if now.Sub(s.saidAt) >= complainEvery {
		s.catchUp(working)
	}
	if !now.Before(s.beatAt) || s.progress.confirmed() > s.sent && now.Sub(s.sentAt) >= confirmEvery {
		if s.stream.silent() {
			return errSilent
		}
		return s.confirm(now)
	}
	return nil
}

func (s *session) nextTick() time.Time {
	next := s.beatAt
	earlier := func(t time.Time, matters bool) {
		if matters && t.Before(next) {
			next = t
		}
	}
	earlier(s.sentAt.Add(confirmEvery), s.progress.confirmed() > s.sent)
	earlier(s.settleAt, len(s.verdicts) > 0 && !s.settling)
	earlier(s.fresh.at, len(s.queue.fresh) > 0 && s.fresh.calls < s.r.cfg.MaxInFlight)
	earlier(s.slow.at, len(s.queue.slow) > 0 && s.slow.calls < s.r.cfg.MaxInFlight)
	earlier(s.looks.at, !s.looks.busy)
	earlier(s.saidAt.Add(complainEvery), s.unsaid > 0)
	if len(s.queue.waiting) > 0 {
		earlier(s.queue.waiting[0].due, true)
	}
	return next
}

// confirm tells the server what is settled, and that somebody is here.
func (s *session) confirm(now time.Time) error {
	s.sent, s.sentAt = s.progress.confirmed(), now
	s.beatAt = now.Add(longestBeat)
	if t := s.facts.senderTimeout; t > 0 {
		s.beatAt = now.Add(min(longestBeat, t/4))
	}
	return s.stream.confirm(s.sent)
}

// finishJobs waits for what runs beside the loop, and for what follows from it. The server gets its answers meanwhile.
func (s *session) finishJobs(stopWorking func()) {
	grace := time.NewTimer(s.r.cfg.StopTimeout)
	defer grace.Stop()
	beat := time.NewTicker(confirmEvery)
	defer beat.Stop()
	alive := true
	for s.jobs > 0 {
		select {
		case act := <-s.done:
			s.jobs--
			act()
		case <-grace.C:
			stopWorking()
		case now := <-beat.C:
			if alive && (!now.Before(s.beatAt) || s.progress.confirmed() > s.sent) {
				alive = s.confirm(now) == nil // what follows says so, too
			}
		}
	}
}

// settledTxn remembers what would be shown again, until the server says that it knows.
func (s *session) settledTxn(t *txn) {
	if t != nil && len(t.acked) > 0 && len(s.late) < memoryLimit {
		s.late = append(s.late, late{t.end, t.acked})
	}
}

// kept drops what the server will not show again.
func (s *session) kept(confirmed pglogrepl.LSN) {
	s.late = slices.DeleteFunc(s.late, func(l late) bool { return l.end <= confirmed })
	s.known.forget(confirmed)
}

// remember keeps what is acknowledged and will be shown again, for the next connection.
func (s *session) remember() {
	for _, v := range s.verdicts {
		if v.acked() && v.row.txn != nil {
			s.known.keep(v.row.origin())
		}
	}
	for _, l := range s.late {
		for _, o := range l.acked {
			s.known.keep(o)
		}
	}
	for e := s.progress.open.Front(); e != nil; e = e.Next() {
		for _, o := range e.Value.(*txn).acked {
			s.known.keep(o)
		}
	}
	s.known.until = max(s.known.until, s.progress.shown)
	if t := s.progress.now; t != nil { // it will be shown from its begin, until more than its commit is confirmed
		s.known.until = max(s.known.until, t.commit+1)
	}
}
