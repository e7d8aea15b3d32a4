package natsjs

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/producer"
)

// headerUUID is where Watermill's stock NATS marshaler puts a message's UUID.
const headerUUID = "_watermill_message_uuid"

// delivery is a message as the guard sees it.
func (s *session) delivery(msg *nats.Msg, meta *nats.MsgMetadata) consumer.Delivery {
	header, uuid := headers(msg.Header)
	return consumer.Delivery{
		Topic:     msg.Subject,
		Origin:    s.limits.stream,
		System:    telemetry.SystemNATS,
		Header:    header,
		UUID:      uuid,
		Position:  position(meta),
		Count:     int(min(meta.NumDelivered, 1<<31-1)),
		WaitLimit: s.waits,
		Payload:   msg.Data,
	}
}

// position says where a message is. A stream that was deleted and made again, or lost, counts from one again, and so
// does one of the same name in another cluster: the time tells them apart.
func position(meta *nats.MsgMetadata) string {
	text := strconv.AppendUint(make([]byte, 0, 41), meta.Sequence.Stream, 10)
	return string(strconv.AppendInt(append(text, '@'), meta.Timestamp.UnixNano(), 10))
}

// headers gives each header one value: several are joined, as RFC 9110, section 5.3 does it. The UUID is no header.
func headers(in nats.Header) (out producer.Header, uuid string) {
	out = make(producer.Header, len(in))
	for name, values := range in {
		switch {
		case name == headerUUID && len(values) > 0:
			uuid = values[0]
		case len(values) > 0:
			out[name] = strings.Join(values, ", ")
		}
	}
	return out, uuid
}
