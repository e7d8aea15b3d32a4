package stocknats

import (
	"encoding/json"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// markKey is the metadata that carries an origin from the unmarshaler to the subscriber, the only way through an
// adapter. Handlers do not see it, and a header of this name is not believed.
const markKey = "_oncemill_delivery"

// An origin is what is known about a delivery beside its message.
type origin struct {
	Reply    string // the subject that takes acks
	Stream   string
	Sequence uint64 // in the stream
	Time     int64  // in nanoseconds, when the stream got it
	Count    uint64 // which delivery this is, from 1

	Problem string // why the message cannot be decoded; empty: it is decoded
}

// position says where a message is. A stream that was deleted and made again, or lost, counts from one again, and so does one of
// the same name in another cluster: the time tells them apart.
func (o origin) position() string {
	return strconv.FormatUint(o.Sequence, 10) + "@" + strconv.FormatInt(o.Time, 10)
}

// mark writes an origin into a message.
func mark(msg *message.Message, o origin) {
	text, err := json.Marshal(o)
	if err != nil { // strings and numbers
		panic(err)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	msg.Metadata.Set(markKey, string(text))
}

// unmark returns a message's origin and its metadata without it. It reports false for a message without one.
func unmark(msg *message.Message) (origin, message.Metadata, bool) {
	var o origin
	text, found := msg.Metadata[markKey]
	metadata := maps.Clone(msg.Metadata)
	delete(metadata, markKey)
	return o, metadata, found && json.Unmarshal([]byte(text), &o) == nil && o.Reply != ""
}

// A delivery is a message of either client package of nats.go.
type delivery struct {
	header nats.Header
	data   []byte
	origin origin
}

func pushed(msg *nats.Msg) delivery {
	d := delivery{header: msg.Header, data: msg.Data, origin: origin{Reply: msg.Reply}}
	if known, err := msg.Metadata(); err == nil {
		d.origin.Stream, d.origin.Sequence, d.origin.Time, d.origin.Count = known.Stream, known.Sequence.Stream, known.Timestamp.UnixNano(), known.NumDelivered
	}
	return d
}

func pulled(msg jetstream.Msg) delivery {
	d := delivery{header: msg.Headers(), data: msg.Data(), origin: origin{Reply: msg.Reply()}}
	if known, err := msg.Metadata(); err == nil {
		d.origin.Stream, d.origin.Sequence, d.origin.Time, d.origin.Count = known.Stream, known.Sequence.Stream, known.Timestamp.UnixNano(), known.NumDelivered
	}
	return d
}
