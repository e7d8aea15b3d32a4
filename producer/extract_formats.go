package producer

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/headers"
	"github.com/oncemill/oncemill/internal/ids"
)

// ExtractCloudEvent finds the id of a CloudEvent (CloudEvents 1.0), which is unique together with its source. They are
// in the headers ce_id and ce_source (Kafka) or ce-id and ce-source (NATS, HTTP). If the header content-type is
// application/cloudevents+json, they are in the members id and source of the payload. Header values are not percent
// decoded. It is an error if one of the two is missing, or is not UTF-8.
func ExtractCloudEvent(in Incoming) (Identity, error) {
	for _, prefix := range [...]string{"ce_", "ce-"} {
		id, noID := in.Header.require(prefix + "id")
		source, noSource := in.Header.require(prefix + "source")
		if errors.Is(noID, ErrNoID) && errors.Is(noSource, ErrNoID) {
			continue
		}
		return cloudEvent(id, noID, source, noSource, headerField(prefix))
	}
	contentType, _, err := in.Header.lookup("content-type")
	if err != nil {
		return Identity{}, err
	}
	mediaType, _, _ := strings.Cut(contentType, ";")
	if !strings.EqualFold(strings.TrimSpace(mediaType), "application/cloudevents+json") {
		return Identity{}, ErrNoID
	}
	members, err := topMembers(in.Payload, "id", "source")
	if err != nil {
		return Identity{}, err
	}
	id, noID := members.require("id")
	source, noSource := members.require("source")
	return cloudEvent(id, noID, source, noSource, "payload member ")
}

func cloudEvent(id string, noID error, source string, noSource error, place string) (Identity, error) {
	for _, attribute := range [...]struct {
		name string
		err  error
	}{{"id", noID}, {"source", noSource}} {
		var unusable *dedupstore.InvalidError
		switch {
		case errors.Is(attribute.err, ErrNoID):
			return Identity{}, invalid(place+attribute.name,
				"is missing: a CloudEvent is identified by id and source")
		case errors.As(attribute.err, &unusable):
			return Identity{}, invalid(place+attribute.name, unusable.Problem)
		}
	}
	return Identity{foreignID("ce", source, id), SourceCloudEvent}, nil
}

// topMembers reads the named string members of a JSON object. It is an error if one is not a string of Unicode text. If
// a member is there twice, the last one counts, as with most JSON readers.
func topMembers(payload []byte, names ...string) (Header, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(payload, &object); err != nil || object == nil {
		return nil, invalid("payload",
			"is not a JSON object, although the header content-type says that it is a CloudEvent")
	}
	members := Header{}
	for _, name := range names {
		value, found := object[name]
		if !found {
			continue
		}
		var text string
		if value[0] != '"' || json.Unmarshal(value, &text) != nil {
			return nil, invalid("payload member "+name, "is not a string")
		}
		if _, err := canonicalize(value); err != nil ||
			!utf8.Valid(value) { // encoding/json takes what it cannot read for U+FFFD
			return nil, invalid("payload member "+name, "is not UTF-8, or holds half of a surrogate pair")
		}
		members[name] = text
	}
	return members, nil
}

// ExtractIdempotencyKey finds the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header). It is a string of
// structured fields (RFC 9651), in double quotes, whose parameters are ignored, or bare text, as most clients send it.
// White space around it does not count. It is unique within a topic.
func ExtractIdempotencyKey(in Incoming) (Identity, error) {
	const name = "Idempotency-Key"
	v, err := in.Header.require(name)
	if err != nil {
		return Identity{}, err
	}
	v = strings.Trim(v, " \t")
	if strings.HasPrefix(v, `"`) {
		text, rest, ok := headers.CutString(v)
		if rest = strings.TrimLeft(rest, " "); !ok || rest != "" && rest[0] != ';' {
			return Identity{}, invalid(headerField(name), "is not a string as RFC 9651 writes it")
		}
		v = text
	}
	return extractForeign(Incoming{Header: Header{name: v}, Topic: in.Topic, Origin: in.Origin}, name, "idem",
		SourceIdempotencyKey)
}

// ExtractDebezium finds the ID of an event that Debezium's outbox router published: header id, a UUID, unique within a
// topic. It ignores the header if the message has a Watermill UUID: Debezium sends none, and others use "id" for other
// things. For the same reason an id that is not a UUID is an error. If it does identify the message, say so with
// ExtractHeader("id").
func ExtractDebezium(in Incoming) (Identity, error) {
	if in.UUID != "" {
		return Identity{}, ErrNoID
	}
	v, err := in.Header.require("id")
	if err != nil {
		return Identity{}, err
	}
	if !ids.IsUUID(v) {
		return Identity{}, invalid("header id",
			"is not a UUID, as Debezium's would be; if it identifies the message, use ExtractHeader(\"id\")")
	}
	return extractForeign(in, "id", "dbz", SourceDebezium)
}
