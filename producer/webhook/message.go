package webhook

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/producer"
)

// Headers of the messages that a Receiver publishes, beside those of the request.
const (
	HeaderSender  = "oncemill-webhook-sender" // Config.Sender
	HeaderEventID = "oncemill-webhook-id"     // the sender's ID of the event
)

// PublisherFunc is a function as a producer.Publisher, such as one that opens a transaction for an outbox, or joins the
// inbox's.
type PublisherFunc func(ctx context.Context, messages ...producer.Message) error

// Publish implements [producer.Publisher].
func (f PublisherFunc) Publish(ctx context.Context, messages ...producer.Message) error {
	return f(ctx, messages...)
}

// MessageID returns the ID of the message for an event, as a Receiver with this tenant (empty: "default") and sender gives
// it.
func MessageID(tenant, sender, eventID string) string {
	return ids.Derive("oncemill/webhook", cmp.Or(tenant, "default"), sender, eventID)
}

// message makes the message for an event, and the key under which it is claimed.
func (rc *Receiver) message(e Event, h http.Header, body []byte) (dedupstore.Key, producer.Message, error) {
	c := rc.config
	key := dedupstore.Key{Tenant: c.Tenant, Group: c.Group, Handler: c.Sender, ID: e.ID}
	if err := key.Validate(); err != nil {
		return key, producer.Message{}, &EventError{"the ID of the event is empty, too long or no text"}
	}
	header := producer.Header{HeaderSender: c.Sender, HeaderEventID: e.ID}
	for _, names := range [...][]string{{"Content-Type", "Content-Encoding"}, e.Headers, c.Headers} {
		for _, name := range names {
			values := h.Values(name)
			if len(values) == 0 {
				continue
			}
			value := strings.Join(values, ", ")
			if !utf8.ValidString(value) { // brokers and databases do not carry it
				return key, producer.Message{}, &EventError{"header " + name + " is not UTF-8"}
			}
			header[strings.ToLower(name)] = value
		}
	}
	return key, producer.Message{ID: MessageID(c.Tenant, c.Sender, e.ID), Topic: c.Topic, Header: header, Payload: body}, nil
}
