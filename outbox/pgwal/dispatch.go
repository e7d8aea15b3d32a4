package pgwal

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

const (
	maxApart     = 32                    // suspects are published side by side
	shortestAway = 50 * time.Millisecond // between calls, while the broker acknowledges nothing
	longestAway  = time.Second
)

// An outlet is where messages without an attempt are published together: those to topics that hang have one of their
// own.
type outlet struct {
	calls int       // of the publisher
	at    time.Time // no further one before
	away  pace.Pace
}

func newOutlet() outlet { return outlet{away: pace.Pace{Shortest: shortestAway, Longest: longestAway}} }

// dispatch publishes what is offered: fresh messages together, whatever there is and without waiting for more;
// suspects, which may have made the publisher fail or hang, each by a call of its own.
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
	messages := make([]outgoing.Message, len(rows))
	for i, r := range rows {
		messages[i] = r.outgoing()
	}
	s.start(func() func() {
		bounded, cancel := context.WithTimeout(working, s.r.cfg.PublishTimeout)
		defer cancel()
		s.r.telemetry.Leased(working, len(rows))
		answers := s.r.sender.Send(bounded, messages)
		return func() {
			if through == nil {
				s.apart--
			} else {
				through.calls--
			}
			s.answered(working, rows, answers, through)
		}
	})
}

// answered does what follows from a call.
func (s *session) answered(ctx context.Context, rows []*row, answers []outgoing.Answer, through *outlet) {
	none := s.queue.hung.None()
	for i, a := range answers { // before the next ones of their keys are offered
		if topic := rows[i].message.Topic; a.Unknown {
			s.queue.hang(topic)
		} else if a.Err == nil && !none {
			s.queue.hung.Answered(topic)
		}
	}
	acked := 0
	var first error
	for i, a := range answers {
		if a.Err != nil {
			if first == nil {
				first = a.Err
			}
			s.refused(rows[i], a)
			continue
		}
		acked++
		s.queue.release(rows[i])
		state := outbox.Published
		if s.r.cfg.Retention == outbox.DeleteAtOnce {
			state = outbox.Removed
		}
		s.judge(verdict{row: rows[i], state: state})
	}
	switch {
	case acked > 0:
		s.acks++
		if through != nil {
			through.away.Reset()
			through.at = time.Time{}
		}
	case through != nil: // the broker may be away
		through.at = time.Now().Add(pace.Jitter(through.away.Next()))
	}
	if first != nil && ctx.Err() == nil {
		s.r.sender.Complain(ctx, len(answers)-acked, len(answers), first)
	}
}

// refused lets a message wait, or die.
func (s *session) refused(r *row, a outgoing.Answer) {
	delay := pace.Jitter(pace.Backoff(s.r.cfg.Backoff.Min, s.r.cfg.Backoff.Max, r.failures+r.unknowns+1))
	if a.Unknown {
		r.unknowns++
		if s.hopeless(r) {
			s.judge(verdict{row: r, state: outbox.Unknown, reason: errtext.Of(a.Err), delay: delay})
			return
		}
	} else {
		r.failures++
		if r.failures >= s.r.cfg.MaxAttempts {
			s.queue.release(r)
			s.die(r, errtext.Of(a.Err))
			return
		}
		s.judge(verdict{row: r, state: outbox.Failed, reason: errtext.Of(a.Err)})
	}
	s.queue.later(r, time.Now().Add(delay))
}

// die settles a message that is refused for the last time, or cannot be published.
func (s *session) die(r *row, reason string) {
	s.r.log.Error("pgwal: message is dead", "id", r.message.ID, "topic", r.message.Topic,
		"failures", r.failures, "unknowns", r.unknowns, "error", reason)
	s.judge(verdict{row: r, state: outbox.Dead, reason: reason})
}

// hopelessAfter is how many attempts without an answer a row may have before it becomes the table's.
const hopelessAfter = 5

// hopeless says that a row gets no answer while the broker acknowledges others. It becomes the table's, which gives it
// back when it is due: it must hold up neither the log nor other messages for ever. A row with a key stays here: later
// ones of its key, which the log shows, would overtake it.
func (s *session) hopeless(r *row) bool {
	before := r.acks
	r.acks = s.acks
	return r.message.Key == "" && r.unknowns >= hopelessAfter && s.acks > before
}
