package explain

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// A Step is a part of a message's handler whose result is remembered, and how it stands.
type Step struct {
	Name     string
	Headline string
	Record   *dedupstore.Record
}

// steps tells of the steps of a message that are among other records, in the order in which they began.
func (t teller) steps(others []dedupstore.Record) (all []Step) {
	for i := range others {
		o := &others[i]
		if name, is := stepOf(t.Key, o.Key); is && o.State != dedupstore.Absent {
			all = append(all, Step{name, teller{o, t.now}.headline(), o})
		}
	}
	slices.SortStableFunc(all, func(a, b Step) int { return began(a.Record).Compare(began(b.Record)) })
	return all
}

// began is when a record's key was claimed first, as far as the record knows.
func began(r *dedupstore.Record) time.Time {
	if r.First.IsZero() {
		return r.Claimed
	}
	return r.First
}

// stepOf returns the name of a step of a message, if the other key is that of one.
func stepOf(message, other dedupstore.Key) (name string, is bool) {
	name, is = strings.CutPrefix(other.Handler, ids.StepHandler(message.Handler, ""))
	other.Handler = message.Handler
	return name, is && other == message
}

// Messages are the keys of messages. They tell which other keys are those of their steps.
type Messages map[dedupstore.Key]bool

// MessagesOf returns the keys of records.
func MessagesOf(records []dedupstore.Record) Messages {
	m := make(Messages, len(records))
	for i := range records {
		m[records[i].Key] = true
	}
	return m
}

// HaveStep reports whether a key is that of a step of one of the messages, or of a step in such a step.
func (m Messages) HaveStep(key dedupstore.Key) bool {
	for is := true; is; {
		if key.Handler, _, is = ids.StepOf(key.Handler); is && m[key] {
			return true
		}
	}
	return false
}

// Steps finds the records of messages' steps. It asks the store once for each scope which steps its messages have.
type Steps struct {
	store    dedupstore.Inspector
	handlers map[dedupstore.Scope][]string
}

// StepsIn returns the steps in a store.
func StepsIn(store dedupstore.Inspector) *Steps {
	return &Steps{store: store, handlers: map[dedupstore.Scope][]string{}}
}

// Of returns the records of a message's steps.
func (s *Steps) Of(ctx context.Context, message dedupstore.Key) ([]dedupstore.Record, error) {
	handlers, known := s.handlers[message.Scope()]
	keeper, keeps := s.store.(dedupstore.ScopeKeeper)
	if !known && keeps {
		uses, err := keeper.Scopes(ctx, message.Tenant, message.Group)
		if err != nil {
			return nil, err
		}
		for _, u := range uses {
			step := message
			step.Handler = u.Handler
			if _, is := stepOf(message, step); is {
				handlers = append(handlers, u.Handler)
			}
		}
		s.handlers[message.Scope()] = handlers
	}
	if len(handlers) == 0 {
		return nil, nil
	}
	keys := make([]dedupstore.Key, len(handlers))
	for i, handler := range handlers {
		keys[i] = message
		keys[i].Handler = handler
	}
	records, err := s.store.Look(ctx, keys)
	return slices.DeleteFunc(records, func(r dedupstore.Record) bool { return r.State == dedupstore.Absent }), err
}
