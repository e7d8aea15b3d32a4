package franz

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// encode turns a stamped message into a record.
func encode(m producer.Message) (*kgo.Record, error) {
	if problem := topicProblem(m.Topic); problem != "" {
		return nil, invalid("Message.Topic", problem)
	}
	record := &kgo.Record{Topic: m.Topic, Value: m.Payload}
	key := m.Key
	// of several spellings one: dead letters have those of their messages
	switch value := m.Header.Get(producer.HeaderKey); {
	case key == "":
		key = value
	case value != "" && value != key:
		return nil, invalid("header "+producer.HeaderKey, "differs from Message.Key")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		value := m.Header[name]
		switch {
		case name == "":
			return nil, invalid("a header", "has no name")
		case !utf8.ValidString(name):
			return nil, invalid(fmt.Sprintf("header %.80q", name), "has a name that is not UTF-8")
		case strings.EqualFold(name, producer.HeaderKey):
			continue
		}
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	if key != "" {
		record.Key = []byte(key)
	}
	return record, nil
}

const maxTopic = 249 // the longest name that Kafka's brokers accept

// topicProblem says why Kafka has no such topic, or "".
func topicProblem(topic string) string {
	switch {
	case topic == "":
		return "is empty"
	case topic == ".", topic == "..":
		return fmt.Sprintf("is %q, which Kafka does not allow", topic)
	case len(topic) > maxTopic:
		return fmt.Sprintf("has %d bytes, Kafka allows %d", len(topic), maxTopic)
	case strings.ContainsFunc(topic, func(r rune) bool {
		return (r < 'a' || 'z' < r) && (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && !strings.ContainsRune("._-", r)
	}):
		return fmt.Sprintf("is %.80q: Kafka allows letters, digits, dot, underscore and hyphen", topic)
	}
	return ""
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "franz", Field: field, Problem: problem}
}
