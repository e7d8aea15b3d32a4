package producer

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
)

// ExtractCloudEvent finds the id of a CloudEvent (CloudEvents 1.0), which is unique together with its source: in
// headers ce_id and ce_source (Kafka) or ce-id and ce-source (NATS, HTTP), or, where the header content-type says
// application/cloudevents+json, in the members id and source of the payload. Header values are taken as they stand,
// without percent decoding. One without the other is an error, and so is what is not UTF-8.
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

// topMembers reads the named string members of a JSON object. Those that are there twice, or are not strings of Unicode
// text, are errors.
func topMembers(payload []byte, names ...string) (Header, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	notJSON := invalid("payload",
		"is not a JSON object, although the header content-type says that it is a CloudEvent")
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, notJSON
	}
	members := Header{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, notJSON
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, notJSON
		}
		for _, wanted := range names {
			if name != wanted {
				continue
			}
			if _, twice := members[wanted]; twice {
				return nil, invalid("payload member "+wanted, "is there twice")
			}
			var text string
			if json.Unmarshal(value, &text) != nil || value[0] != '"' {
				return nil, invalid("payload member "+wanted, "is not a string")
			}
			if _, err := canonicalize(value); err != nil ||
				!utf8.Valid(value) { // encoding/json takes what it cannot read for U+FFFD
				return nil, invalid("payload member "+wanted, "is not UTF-8, or holds half of a surrogate pair")
			}
			members[wanted] = text
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, notJSON
	}
	return members, nil
}

// ExtractIdempotencyKey finds the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header): a string of
// structured fields (RFC 9651), in double quotes and with parameters, which are ignored; or the bare text, as most
// clients send it. White space around it does not count. It is unique within a topic.
func ExtractIdempotencyKey(in Incoming) (Identity, error) {
	const name = "Idempotency-Key"
	v, err := in.Header.require(name)
	if err != nil {
		return Identity{}, err
	}
	if v, err = unquoteKey(strings.Trim(v, " \t")); err != nil {
		return Identity{}, err
	}
	return extractForeign(Incoming{Header: Header{name: v}, Topic: in.Topic, Origin: in.Origin}, name, "idem",
		SourceIdempotencyKey)
}

// unquoteKey returns the text of a structured field's string, or of a bare value.
func unquoteKey(s string) (string, error) {
	bad := invalid("header Idempotency-Key", "is not a string as RFC 9651 writes it")
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	var text strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			if rest := strings.TrimLeft(s[i+1:], " "); rest != "" && rest[0] != ';' {
				return "", bad
			}
			return text.String(), nil
		case c == '\\':
			i++
			if i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", bad
			}
			text.WriteByte(s[i])
		case c < ' ' || c > '~':
			return "", bad
		default:
			text.WriteByte(c)
		}
	}
	return "", bad // no closing quote
}

// ExtractDebezium finds the ID of an event that Debezium's outbox router published: header id, a UUID, unique within a
// topic. Where a message has a Watermill UUID the header is not looked at: Debezium sends none, and others call other
// things "id". An id that is not a UUID is an error for the same reason: if it does identify the message, say so with
// ExtractHeader("id").
func ExtractDebezium(in Incoming) (Identity, error) {
	if in.UUID != "" {
		return Identity{}, ErrNoID
	}
	v, err := in.Header.require("id")
	if err != nil {
		return Identity{}, err
	}
	if !isUUID(v) {
		return Identity{}, invalid("header id",
			"is not a UUID, as Debezium's would be; if it identifies the message, use ExtractHeader(\"id\")")
	}
	return extractForeign(in, "id", "dbz", SourceDebezium)
}
