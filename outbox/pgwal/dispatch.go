package pgwal

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

// maxApart is how many suspects are published side by side.
const maxApart = 32

// An outlet is where messages without an attempt are published together: those to topics that hang have one of their own.
type outlet struct {
	calls int       // of the publisher
	at    time.Time // no further one before
	away  pace.Pace
}

func newOutlet() outlet { return outlet{away: pace.Pace{Shortest: shortestAway, Longest: longestAway}} }

// dispatch publishes what is offered: fresh messages together, whatever there is and without waiting for more; suspects,
// which may have made the publisher fail or hang, each by a call of its own.
func (s *session) dispatch(working context.Context, now time.Time) {
	s.empty(working, now, &s.queue.fresh, &s.fresh)
	s.empty(working, now, &s.queue.slow, &s.slow)
	for s.apart < maxApart && len(s.queue.suspects) > 0 {
		s.apart++
		s.call(working, take(&s.queue.suspects, 1), nil)
	}
}

func (s *session) empty(working context.Context, now time.Time, list *[]*row, through *outlet) {
	for through.calls < s.r.cfg.MaxInFlight && len(*list) > 0 && !now.Before(through.at) {
		through.calls++
		s.call(working, take(list, min(len(*list), s.r.cfg.BatchSize)), through)
	}
}

// call publishes rows by one call of the publisher, beside the loop. A suspect goes through no outlet.
func (s *session) call(working context.Context, rows []*row, through *outlet) {
	s.start(func() func() {
		answers := s.r.publish(working, rows)
		return func() {
			if through == nil {
				s.apart--
			} else {
				through.calls--
			}
			s.answered(working, answers, through)
		}
	})
}

// answered does what follows from a call.
func (s *session) answered(ctx context.Context, answers []answer, through *outlet) {
	acked := 0
	var first error
	none := s.queue.hung.None()
	for _, a := range answers { // before the next ones of their keys are offered
		if a.unknown {
			s.queue.hang(a.row.message.Topic)
		} else if a.err == nil && !none {
			s.queue.hung.Answered(a.row.message.Topic)
		}
	}
	for _, a := range answers {
		if a.err == nil {
			acked++
			s.queue.release(a.row)
			s.acknowledge(a.row)
			continue
		}
		if first == nil {
			first = a.err
		}
		s.refused(ctx, a)
	}
	if acked > 0 {
		s.acks++
	}
	switch {
	case acked > 0 && through == nil:
		s.queue.wakeSuspects()
	case acked > 0:
		through.away.Reset()
		through.at = time.Time{}
	case through != nil && len(answers) > 0: // the broker may be away
		through.at = time.Now().Add(pace.Jitter(through.away.Next()))
	}
	if first != nil && ctx.Err() == nil {
		s.complain(ctx, len(answers)-acked, len(answers), first)
	}
}

// complainEvery is the shortest time between two lines about messages that were not acknowledged: in an outage there are thousands,
// each with a call of its own.
const complainEvery = time.Second

// complain notes what was not acknowledged, and says it.
func (s *session) complain(ctx context.Context, messages, of int, err error) {
	s.unsaid += messages
	s.unsaidOf += of
	s.unsaidErr = err
	if time.Since(s.saidAt) >= complainEvery {
		s.catchUp(ctx)
	}
}

// catchUp says what was not acknowledged since there was a line about it.
func (s *session) catchUp(ctx context.Context) {
	if s.unsaid == 0 {
		return
	}
	s.r.log.WarnContext(ctx, "pgwal: messages were not acknowledged", "messages", s.unsaid, "of", s.unsaidOf, "error", s.unsaidErr)
	s.unsaid, s.unsaidOf, s.saidAt = 0, 0, time.Now()
}

// acknowledge settles a message that the broker has.
func (s *session) acknowledge(r *row) {
	s.bytes -= r.size
	r.size, r.message.Payload, r.message.Header = 0, nil, nil
	if r.txn != nil && s.r.cfg.messages() {
		r.txn.acked = append(r.txn.acked, r.origin())
	}
	state := outbox.Published
	if s.r.cfg.Retention == outbox.DeleteAtOnce {
		state = outbox.Removed
	}
	s.judge(verdict{row: r, state: state})
}

// refused lets a message wait, or die.
func (s *session) refused(ctx context.Context, a answer) {
	r := a.row
	switch {
	case a.unknown:
		r.unknowns++
		s.adopt(a)
	case r.failures+1 >= s.r.cfg.MaxAttempts:
		r.failures++
		s.r.log.ErrorContext(ctx, "pgwal: message is dead", "id", r.message.ID, "topic", r.message.Topic,
			"failures", r.failures, "unknowns", r.unknowns, "error", a.err)
		s.queue.release(r)
		s.judge(verdict{row: r, state: outbox.Dead, reason: errtext.Of(a.err)})
		return
	default:
		r.failures++
		s.judge(verdict{row: r, state: outbox.Failed, reason: errtext.Of(a.err)})
	}
	s.queue.later(r, time.Now().Add(pace.Jitter(pace.Backoff(s.r.cfg.RetryMin, s.r.cfg.RetryMax, r.failures+r.unknowns))))
}

// adoptAfter is how many attempts without an answer a row may have before it becomes the table's.
const adoptAfter = 5

// adopt makes a row the table's that gets no answer while the broker acknowledges others: it must not hold up the log for
// ever. It goes on waiting here. A row with a key stays the log's: after a restart, later ones of its key, which the log
// shows, would overtake it.
func (s *session) adopt(a answer) {
	r := a.row
	if r.txn == nil || r.adopted || s.r.cfg.messages() || r.message.Key != "" {
		return
	}
	before := r.acks
	r.acks = s.acks
	if r.unknowns >= adoptAfter && s.acks > before {
		r.adopted = true
		s.judge(verdict{row: r, state: outbox.Unknown, reason: errtext.Of(a.err)})
	}
}

// die settles a message that cannot be published at all.
func (s *session) die(r *row, problem string) {
	s.r.log.Error("pgwal: message is dead", "id", r.message.ID, "topic", r.message.Topic, "error", problem)
	r.failures++
	s.judge(verdict{row: r, state: outbox.Dead, reason: problem})
}
