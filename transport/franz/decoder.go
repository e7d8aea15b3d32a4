package franz

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// Header names beside those of package producer.
const (
	headerUUID      = "_watermill_message_uuid" // where watermill-kafka keeps a message's UUID
	headerNotBefore = "oncemill-not-before"     // retry topics: Unix time in milliseconds
	headerPosition  = "oncemill-position"       // retry topics: where it is in the source topic
)

// A decoder turns records into deliveries.
type decoder struct {
	retry    []RetryTopic // they hold copies of records of others
	consumed func(topic string) bool
}

// consumed reports whether a client consumes a topic that it knows by name: from the start, or by now.
func consumed(cl *kgo.Client) func(topic string) bool {
	known := cl.GetConsumeTopics()
	return func(topic string) bool {
		return slices.Contains(known, topic) || slices.Contains(cl.GetConsumeTopics(), topic)
	}
}

// delivery turns a record into a delivery, and says when it is due.
func (c *decoder) delivery(rec *kgo.Record) (d consumer.Delivery, due time.Time, err error) {
	d = consumer.Delivery{
		Topic:    rec.Topic,
		System:   telemetry.SystemKafka,
		Position: position(rec),
		Header:   header(rec.Headers),
		Payload:  rec.Value,
	}
	if retryIndex(c.retry, rec.Topic) >= 0 {
		if due, err = c.restore(&d); err != nil {
			return d, due, err
		}
	}
	d.UUID = d.Header[headerUUID]
	delete(d.Header, headerUUID)
	if len(rec.Key) > 0 {
		d.Header[producer.HeaderKey] = string(rec.Key) // for dead letters, and for handlers in a Router
	}
	d.Origin = d.Topic
	return d, due, nil
}

// position is where a record lies in its topic. A partition that has lost the end of its log uses offsets again, in a
// later epoch.
func position(rec *kgo.Record) string {
	text := strconv.AppendInt(make([]byte, 0, 42), int64(rec.Partition), 10)
	text = strconv.AppendInt(append(text, '-'), rec.Offset, 10)
	return string(strconv.AppendInt(append(text, '-'), int64(rec.LeaderEpoch), 10))
}

// restore makes a record of a retry topic the delivery that it is a copy of.
func (c *decoder) restore(d *consumer.Delivery) (due time.Time, err error) {
	topic, copied := d.Header[producer.HeaderTopic]
	if !copied || d.Header[producer.HeaderPurpose] == producer.PurposeDeadLetter {
		return due, nil // somebody else has put it there
	}
	if !c.consumed(topic) { // a retry topic is one, too, of what others have put there
		return due, setupError("retry "+theTopic(d.Topic), "holds a record of topic %q, which this worker does not "+
			"consume: give each set of topics retry topics of its own", topic)
	}
	if ms, err := strconv.ParseInt(d.Header[headerNotBefore], 10, 64); err == nil {
		due = time.UnixMilli(ms)
	}
	d.Topic, d.Position = topic, d.Header[headerPosition]
	for _, name := range [...]string{producer.HeaderTopic, producer.HeaderPurpose, headerNotBefore, headerPosition} {
		delete(d.Header, name)
	}
	return due, nil
}

// header returns a record's headers by name. It joins different values of one name with ", ", as in RFC 9110. It does
// so at the end, because a sender may send a hundred thousand values of one name, which must not be copied as often.
func header(headers []kgo.RecordHeader) producer.Header {
	first := make(producer.Header, len(headers))
	var all map[string][]string // of names that are there more than once
	for _, h := range headers {
		value := string(h.Value)
		before, twice := first[h.Key]
		switch values := all[h.Key]; {
		case !twice:
			first[h.Key] = value
		case values != nil:
			all[h.Key] = append(values, value)
		case before != value:
			if all == nil {
				all = map[string][]string{}
			}
			all[h.Key] = []string{before, value}
		}
	}
	for name, values := range all {
		first[name] = strings.Join(values, ", ")
	}
	return first
}
