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

	"github.com/oncemill/oncemill/producer"
)

// encode turns a stamped message into one for NATS.
func encode(m producer.Message) (*nats.Msg, error) {
	if problem := subjectProblem(m.Topic); problem != "" {
		return nil, invalid("Message.Topic", problem)
	}
	header := make(nats.Header, len(m.Header)+2)
	values := make([]string, 0, len(m.Header)+2) // one piece of memory for all lists of one value
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range m.Header {
		if strings.EqualFold(name, producer.HeaderReason) {
			value = strings.TrimSpace(strings.Map(printable, value)) // for people: it must not keep a dead letter from leaving
		}
		if problem := headerProblem(name, value); problem != "" {
			return nil, invalid(fmt.Sprintf("header %.80q", name), problem)
		}
		set(name, value)
	}
	if m.Key != "" {
		for name, value := range m.Header {
			if strings.EqualFold(name, producer.HeaderKey) && value != m.Key {
				return nil, invalid("header "+name, fmt.Sprintf("is %.80q although Message.Key is %.80q", value, m.Key))
			}
		}
		if problem := headerProblem(producer.HeaderKey, m.Key); problem != "" {
			return nil, invalid("Message.Key", problem)
		}
		set(producer.HeaderKey, m.Key)
	}
	if g := m.Header.Get(producer.HeaderGeneration); g != "" {
		if _, err := strconv.ParseUint(g, 10, 64); err != nil {
			return nil, invalid("header "+producer.HeaderGeneration, fmt.Sprintf("is %.80q, want a number", g))
		}
	}
	set(jetstream.MsgIDHeader, msgID(m))
	return &nats.Msg{Subject: m.Topic, Header: header, Data: m.Payload}, nil
}

// msgID is the ID by which a stream deduplicates. It is not the message ID alone: a dead letter, a retry or a replay
// of a message is another thing to store, on the same stream perhaps.
func msgID(m producer.Message) string {
	named := make([]byte, 0, 256) // of most messages: not on the heap
	for _, part := range [...]string{m.ID, m.Topic, m.Header.Get(producer.HeaderPurpose), m.Header.Get(producer.HeaderGeneration)} {
		named = binary.BigEndian.AppendUint64(named, uint64(len(part)))
		named = append(named, part...)
	}
	sum := sha256.Sum256(named)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// subjectProblem says why a subject cannot be published to, or "".
func subjectProblem(subject string) string {
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
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"()/,:;<=>?@[\]{}`, r) }):
		return "has a name that NATS does not allow (ADR-4)"
	case strings.HasPrefix(strings.ToLower(name), "nats-"):
		return "is an order to the NATS server, as all that begin with Nats-, and not part of a message: leave it out"
	case strings.ContainsAny(value, "\r\n"):
		return "holds a line break"
	case strings.Trim(value, " \t") != value:
		return "begins or ends with white space, which NATS would cut off"
	}
	return ""
}

func printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

func invalid(field, problem string) error {
	return &producer.InvalidError{Field: field, Problem: problem}
}
