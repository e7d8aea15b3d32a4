package natsjs

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// An encoder holds a message for NATS: one after the other, in the same memory.
type encoder struct {
	message nats.Msg
	values  []string // one piece of memory for all lists of one value
}

// encode makes its message that of a stamped one, and returns the ID by which a stream deduplicates.
func (e *encoder) encode(m producer.Message) (id string, err error) {
	if problem := subjectProblem(m.Topic); problem != "" {
		return "", invalid("Message.Topic", problem)
	}
	if e.message.Header == nil {
		e.message.Header = make(nats.Header, len(m.Header)+2)
	}
	clear(e.message.Header)
	e.message.Subject, e.message.Data, e.values = m.Topic, m.Payload, e.values[:0]
	var purpose, generation string
	for name, value := range m.Header {
		if strings.EqualFold(name, producer.HeaderReason) {
			// for people: it must not keep a dead letter from leaving
			value = strings.TrimSpace(strings.Map(printable, value))
		}
		if problem := headerProblem(name, value); problem != "" {
			return "", invalid(fmt.Sprintf("header %.80q", name), problem)
		}
		switch {
		case strings.EqualFold(name, producer.HeaderPurpose):
			purpose = value
		case strings.EqualFold(name, producer.HeaderGeneration):
			generation = value
		case m.Key != "" && strings.EqualFold(name, producer.HeaderKey) && value != m.Key:
			return "", invalid("header "+name, "differs from Message.Key")
		}
		e.set(name, value)
	}
	if m.Key != "" {
		if problem := headerProblem(producer.HeaderKey, m.Key); problem != "" {
			return "", invalid("Message.Key", problem)
		}
		e.set(producer.HeaderKey, m.Key)
	}
	if generation != "" {
		if _, err := strconv.ParseUint(generation, 10, 64); err != nil {
			return "", invalid("header "+producer.HeaderGeneration, fmt.Sprintf("is %.80q, want a number", generation))
		}
	}
	id = msgID(m.ID, m.Topic, purpose, generation)
	e.set(jetstream.MsgIDHeader, id)
	return id, nil
}

func (e *encoder) set(name, value string) {
	e.values = append(e.values, value)
	n := len(e.values)
	e.message.Header[name] = e.values[n-1 : n : n]
}

// msgID is the ID by which a stream deduplicates. It is more than the message ID, because a dead letter, a retry or a
// replay of a message must be stored too, perhaps on the same stream.
func msgID(id, topic, purpose, generation string) string {
	named := make([]byte, 0, 256) // of most messages: not on the heap
	for _, part := range [...]string{id, topic, purpose, generation} {
		named = binary.BigEndian.AppendUint64(named, uint64(len(part)))
		named = append(named, part...)
	}
	sum := sha256.Sum256(named)
	var text [43]byte
	base64.RawURLEncoding.Encode(text[:], sum[:])
	return string(text[:])
}

// maxSubject leaves room for the subject of the answer within the 4,096 bytes of a server's max_control_line.
const maxSubject = 3800

// subjectProblem says why a subject cannot be published to, or "".
func subjectProblem(subject string) string {
	if len(subject) > maxSubject {
		return fmt.Sprintf("has %d bytes, want at most %d: nats.go closes its connection for good where a server "+
			"refuses a longer line", len(subject), maxSubject)
	}
	if strings.ContainsFunc(subject, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return fmt.Sprintf("is %.80q: a NATS subject has no white space", subject)
	}
	for token := range strings.SplitSeq(subject, ".") {
		switch token {
		case "":
			return fmt.Sprintf("is %.80q: a NATS subject has no empty token", subject)
		case "*", ">":
			return fmt.Sprintf("is %.80q: it has wildcards, which are for subscribing", subject)
		}
	}
	return ""
}

// headerProblem says why NATS cannot carry a header as it is, or "".
func headerProblem(name, value string) string {
	switch {
	case name == "":
		return "has no name"
	case strings.ContainsFunc(name, unusable):
		return "has a name that NATS does not allow (ADR-4)"
	case len(name) >= len(orders) && strings.EqualFold(name[:len(orders)], orders):
		return "is an order to the NATS server, as all that begin with Nats-, and not part of a message: leave it out"
	case strings.ContainsAny(value, "\r\n"):
		return "holds a line break"
	case strings.Trim(value, " \t") != value:
		return "begins or ends with white space, which NATS would cut off"
	}
	return ""
}

const orders = "nats-"

// unusable reports whether a rune cannot stand in the name of a header.
func unusable(r rune) bool {
	return r <= ' ' || r > '~' || strings.IndexByte(`"()/,:;<=>?@[\]{}`, byte(r)) >= 0
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "natsjs", Field: field, Problem: problem}
}
