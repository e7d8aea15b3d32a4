package producer

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/oncemill/oncemill/internal/telemetry"
)

// Stamp makes a message ready to be published for the first time. A message without an ID takes the one in its header
// oncemill-id, or else a new one. Stamp sets that header. It also writes the trace context of ctx, unless there is one,
// with OpenTelemetry's global propagator or that of WithPropagator. Stamping again changes nothing.
//
// It returns a *dedupstore.InvalidError, and leaves the message alone, if the ID cannot be used, or if ID and header
// disagree. The headers oncemill-id, oncemill-purpose and oncemill-generation tell copies apart: it is an error, too,
// if one is there only in other spellings with different values. The message's header is replaced, not written to, so
// messages may share one.
func Stamp(ctx context.Context, m *Message) error {
	stamped, found, err := m.Header.lookup(HeaderID)
	if err != nil {
		return err
	}
	id, field := m.ID, "Message.ID"
	switch {
	case found && id == "":
		id, field = stamped, headerField(HeaderID)
	case found && id != stamped:
		return invalid(headerField(HeaderID), fmt.Sprintf("is %.600q although Message.ID is %.600q", stamped, id))
	case id == "":
		id = NewID()
	}
	if err := checkID(field, id); err != nil {
		return err
	}
	for _, name := range [...]string{HeaderPurpose, HeaderGeneration} {
		if _, _, err := m.Header.lookup(name); err != nil {
			return err
		}
	}
	header := m.Header.without(HeaderID)
	header[HeaderID] = id
	telemetry.Inject(ctx, header)
	m.ID, m.Header = id, header
	return nil
}

// WithPropagator returns a context in which Stamp writes trace context with p instead of OpenTelemetry's global
// propagator. A handler's context already has that of its Processor.
func WithPropagator(ctx context.Context, p propagation.TextMapPropagator) context.Context {
	return telemetry.WithPropagator(ctx, p)
}

// Outgoing returns the message stamped, as a publisher that sends at once puts it on the wire: without the header
// oncemill-name. Its header is a copy. It returns a *dedupstore.InvalidError for an empty topic, for a NotBefore that
// lies ahead, and for a missing ID. One minted here would change at the next attempt.
func Outgoing(ctx context.Context, m Message) (Message, error) {
	switch {
	case m.Topic == "":
		return m, invalid("Message.Topic", "is empty")
	case m.ID == "" && m.Header.Get(HeaderID) == "":
		return m, invalid("Message.ID", "is empty: use Stamp, NewID or DeriveID before the first attempt")
	case !m.NotBefore.IsZero() && m.NotBefore.After(time.Now()):
		return m, invalid("Message.NotBefore",
			fmt.Sprintf("lies ahead (%s): this publisher sends at once, an outbox can wait",
				m.NotBefore.Format(time.RFC3339)))
	}
	if err := Stamp(ctx, &m); err != nil {
		return m, err
	}
	telemetry.Forget(m.Header, HeaderName)
	return m, nil
}

// With returns a copy with this value for a name, in this spelling only.
func (h Header) With(name, value string) Header {
	h = h.without(name)
	h[name] = value
	return h
}

// without returns a copy that lacks a header, in any case.
func (h Header) without(name string) Header {
	h = maps.Clone(h)
	if h == nil {
		h = Header{}
	}
	maps.DeleteFunc(h, func(k, _ string) bool { return strings.EqualFold(k, name) })
	return h
}
