// Package natswire is how messages travel over NATS: which subjects and headers they may have, and by which ID a stream
// deduplicates them.
package natswire

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// Encode calls set for each header of a stamped message, and returns the ID by which a stream deduplicates. An error is
// an [*dedupstore.InvalidError] of a package: NATS cannot carry the message as it is.
func Encode(pkg string, m *producer.Message, set func(name, value string)) (id string, err error) {
	invalid := func(field, problem string) (string, error) {
		return "", &dedupstore.InvalidError{Package: pkg, Field: field, Problem: problem}
	}
	if problem := subjectProblem(m.Topic); problem != "" {
		return invalid("Message.Topic", problem)
	}
	var purpose, generation string
	for name, value := range m.Header {
		if strings.EqualFold(name, producer.HeaderReason) {
			// for people: it must not keep a dead letter from leaving
			value = strings.TrimSpace(strings.Map(Printable, value))
		}
		if problem := headerProblem(name, value); problem != "" {
			return invalid(fmt.Sprintf("header %.80q", name), problem)
		}
		switch {
		case strings.EqualFold(name, producer.HeaderPurpose):
			purpose = value
		case strings.EqualFold(name, producer.HeaderGeneration):
			generation = value
		case m.Key != "" && strings.EqualFold(name, producer.HeaderKey) && value != m.Key:
			return invalid("header "+name, "differs from Message.Key")
		}
		set(name, value)
	}
	if m.Key != "" {
		if problem := headerProblem(producer.HeaderKey, m.Key); problem != "" {
			return invalid("Message.Key", problem)
		}
		set(producer.HeaderKey, m.Key)
	}
	if generation != "" {
		if _, err := strconv.ParseUint(generation, 10, 64); err != nil {
			return invalid("header "+producer.HeaderGeneration, fmt.Sprintf("is %.80q, want a number", generation))
		}
	}
	return hash(m.ID, m.Topic, purpose, generation), nil
}

// BatchID is the ID of messages that a stream has all of or none, by the IDs of each.
func BatchID(ids []string) string {
	if len(ids) == 1 {
		return ids[0]
	}
	return hash(append([]string{"batch"}, ids...)...)
}

// hash is the ID by which a stream deduplicates. It is more than the message ID, because a dead letter, a retry or a
// replay of a message must be stored too, perhaps on the same stream.
func hash(parts ...string) string {
	named := make([]byte, 0, 256) // of most messages: not on the heap
	for _, part := range parts {
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

// Printable makes a control character a space, for strings.Map.
func Printable(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}

// Overlaps reports whether a subject can match both patterns. Either may be a subject, which matches itself.
func Overlaps(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		if i >= len(as) || i >= len(bs) {
			return false
		}
		if as[i] == ">" || bs[i] == ">" {
			return true
		}
		if as[i] != bs[i] && as[i] != "*" && bs[i] != "*" {
			return false
		}
	}
	return true
}
