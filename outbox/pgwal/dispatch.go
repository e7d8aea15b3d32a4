package pgwal

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/internal/errtext"
	"github.com/oncemill/oncemill/internal/outgoing"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/outbox"
)

// dispatch publishes what is offered, without waiting for more.
func (s *session) dispatch(working context.Context) {
	for _, o := range [...]*outlet{&s.queue.fresh, &s.queue.slow, &s.queue.suspects} {
		for o.calls < o.most && len(o.rows) > 0 && !time.Now().Before(o.at) {
			n := min(len(o.rows), o.batch)
			rows := o.rows[:n:n]
			o.rows = o.rows[n:]
			s.call(working, rows, o)
		}
	}
}

// call publishes rows by one call of the publisher, beside the loop.
func (s *session) call(working context.Context, rows []*row, through *outlet) {
	messages := make([]outgoing.Message, len(rows))
	for i, r := range rows {
		messages[i] = r.outgoing()
	}
	through.calls++
	s.start(func() func() {
		bounded, cancel := context.WithTimeout(working, s.r.cfg.PublishTimeout)
		defer cancel()
		s.r.telemetry.Leased(working, len(rows))
		answers := s.r.sender.Send(bounded, messages)
		return func() {
			through.calls--
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
	state := outbox.Published
	if s.r.cfg.Retention == outbox.DeleteAtOnce {
		state = outbox.Removed
	}
	failed, first := 0, 0
	for i, a := range answers {
		if a.Err == nil {
			s.queue.release(rows[i])
			s.judge(rows[i], verdict{State: state})
			continue
		}
		if failed++; failed == 1 {
			first = i
		}
		s.refused(rows[i], a)
	}
	if failed < len(answers) {
		s.acks++
		through.away.Reset()
		through.at = time.Time{}
	} else { // the broker may be away
		through.at = time.Now().Add(pace.Jitter(through.away.Next()))
	}
	if failed > 0 && ctx.Err() == nil {
		s.r.sender.Complain(ctx, failed, len(answers), &rows[first].message, answers[first].Err)
	}
}

// refused lets a message wait, or die.
func (s *session) refused(r *row, a outgoing.Answer) {
	delay := pace.Jitter(pace.Backoff(s.r.cfg.Backoff.Min, s.r.cfg.Backoff.Max, r.failures+r.unknowns+1))
	if a.Unknown {
		r.unknowns++
		if s.hopeless(r) {
			s.judge(r, verdict{State: outbox.Unknown, Reason: errtext.Of(a.Err), Delay: delay})
			return
		}
	} else {
		r.failures++
		if r.failures >= s.r.cfg.MaxAttempts {
			s.queue.release(r)
			s.die(r, errtext.Of(a.Err))
			return
		}
		s.judge(r, verdict{State: outbox.Failed, Reason: errtext.Of(a.Err)})
	}
	r.due = time.Now().Add(delay)
	s.queue.waiting = append(s.queue.waiting, r)
}

// die settles a message that is refused for the last time, or cannot be published.
func (s *session) die(r *row, reason string) {
	s.r.log.Error("pgwal: message is dead", "id", r.message.ID, "topic", r.message.Topic,
		"failures", r.failures, "unknowns", r.unknowns, "error", reason)
	s.judge(r, verdict{State: outbox.Dead, Reason: reason})
}

// hopelessAfter is how many attempts without an answer turn a row over to the table.
const hopelessAfter = 5

// hopeless reports whether a row gets no answer while the broker acknowledges others. Such a row goes to the table,
// which gives it back when it is due. Otherwise it would hold up the log and other messages for ever. A row with a key
// stays here: later rows of its key would overtake it.
func (s *session) hopeless(r *row) bool {
	before := r.acks
	r.acks = s.acks
	return r.message.Key == "" && r.unknowns >= hopelessAfter && s.acks > before
}
