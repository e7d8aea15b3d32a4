package producer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Incoming is what extractors see of a received message. They do not change it.
type Incoming struct {
	Header  Header
	UUID    string // of a Watermill message; empty elsewhere
	Topic   string // where it came from
	Origin  string // a position is unique in it, and an ID without a namespace: a stream. Empty: Topic
	Payload []byte // for CloudEvents in structured mode

	// Position is where the broker keeps the message within its origin: partition, offset and epoch, or a stream's
	// sequence and time. Only ExtractPosition looks at it.
	Position string
}

func (in Incoming) origin() string { return cmp.Or(in.Origin, in.Topic) }

// Identity is the ID of a message, and where it was found.
type Identity struct {
	ID     string // 1 to dedupstore.MaxID bytes of UTF-8
	Source Source
}

// Source says where an ID was found. The set is closed, so that it can be a metric's label.
type Source string

// The sources of IDs.
const (
	SourceMessageID      Source = "message_id"      // header oncemill-id
	SourceCloudEvent     Source = "ce_id"           // CloudEvents id and source
	SourceNatsMsgID      Source = "nats_msg_id"     // header Nats-Msg-Id
	SourceIdempotencyKey Source = "idempotency_key" // header Idempotency-Key
	SourceDebezium       Source = "debezium_id"     // header id of a Debezium outbox event
	SourceWatermillUUID  Source = "watermill_uuid"  // Watermill's UUID
	SourcePosition       Source = "position"        // the broker's position
	SourceHeader         Source = "header"          // a header that ExtractHeader was told of
	SourceCustom         Source = "custom"          // an extractor of the user's
)

var sources = []Source{
	SourceMessageID, SourceCloudEvent, SourceNatsMsgID, SourceIdempotencyKey, SourceDebezium, SourceWatermillUUID,
	SourcePosition, SourceHeader, SourceCustom,
}

// An Extractor looks for an ID in one place. It returns ErrNoID if there is none, and an error that names the header or
// field if the ID cannot be used. It is safe for concurrent use, and returns the same ID for every delivery of a
// message. Pass IDs of other systems through ForeignID.
type Extractor func(Incoming) (Identity, error)

// DefaultExtractors returns the extractors that Extract uses, in a slice of the caller's own: ExtractMessageID,
// ExtractCloudEvent, ExtractNatsMsgID, ExtractIdempotencyKey, ExtractDebezium, ExtractWatermillUUID. The broker's
// position is not among them, because a producer's retry has another one.
func DefaultExtractors() []Extractor { return slices.Clone(defaultExtractors) }

var defaultExtractors = []Extractor{
	ExtractMessageID, ExtractCloudEvent, ExtractNatsMsgID, ExtractIdempotencyKey, ExtractDebezium, ExtractWatermillUUID,
}

// Extract returns the ID of the first extractor that finds one; without extractors it uses DefaultExtractors. It
// returns ErrNoID if none does. An ID that cannot be used ends the search with an error, usually a
// *dedupstore.InvalidError that names the header. Another ID would not be the one that the producer meant. An identity
// of an unknown source is reported as SourceCustom.
func Extract(in Incoming, extractors ...Extractor) (Identity, error) {
	if len(extractors) == 0 {
		extractors = defaultExtractors
	}
	for i, extract := range extractors {
		if extract == nil {
			return Identity{}, invalid(fmt.Sprintf("extractor %d", i), "is nil")
		}
		found, err := extract(in)
		if errors.Is(err, ErrNoID) {
			continue
		}
		if err != nil {
			return Identity{}, err
		}
		if !slices.Contains(sources, found.Source) {
			found.Source = SourceCustom
		}
		if problem := idProblem(found.ID); problem != "" {
			return Identity{}, invalid(fmt.Sprintf("ID of extractor %d (%s)", i, found.Source), problem)
		}
		return found, nil
	}
	return Identity{}, ErrNoID
}

// ExtractMessageID finds the ID that Stamp wrote: header oncemill-id.
func ExtractMessageID(in Incoming) (Identity, error) {
	id, err := in.Header.require(HeaderID)
	if err != nil {
		return Identity{}, err
	}
	return Identity{id, SourceMessageID}, checkID("header "+HeaderID, id)
}

// ExtractWatermillUUID finds the UUID of a Watermill message, which is the same ID as an equal header oncemill-id. An
// empty one is no ID: foreign producers leave it empty.
func ExtractWatermillUUID(in Incoming) (Identity, error) {
	if in.UUID == "" {
		return Identity{}, ErrNoID
	}
	return Identity{in.UUID, SourceWatermillUUID}, checkID("Watermill UUID", in.UUID)
}

// ExtractNatsMsgID finds the ID by which JetStream deduplicates, header Nats-Msg-Id, unique within its origin.
// Watermill's NATS unmarshallers drop this header.
func ExtractNatsMsgID(in Incoming) (Identity, error) {
	return extractForeign(in, "Nats-Msg-Id", "nats", SourceNatsMsgID)
}

// ExtractHeader returns an extractor for a header of any name, such as webhook-id. Its value must be unique within the
// origin: two messages with the same value are one message.
func ExtractHeader(name string) Extractor {
	return func(in Incoming) (Identity, error) {
		v, err := in.Header.require(name)
		if err != nil {
			return Identity{}, err
		}
		id := foreignID("hdr", strings.ToLower(name), in.origin(), v)
		return Identity{id, SourceHeader}, checkID("Incoming.Origin", id)
	}
}

// ExtractPosition makes the ID from the broker's position: origin and Incoming.Position. It recognises redeliveries,
// but not a producer's second copy. Use it last, for topics whose producers give no ID. If a Kafka topic is deleted and
// made again, its offsets start over, and new messages get the IDs of old ones. Wait for the end of the dedup window
// first, or give the consumer another Handler. Clusters with topics of the same name need different Groups if they
// share a store.
func ExtractPosition(in Incoming) (Identity, error) {
	if in.Position == "" {
		return Identity{}, ErrNoID
	}
	if problem := textProblem(in.Position); problem != "" {
		return Identity{}, invalid("Incoming.Position", problem)
	}
	id := foreignID("pos", in.origin(), in.Position)
	return Identity{id, SourcePosition}, checkID("Incoming.Origin", id)
}

// extractForeign finds an ID that is unique within its origin in one header.
func extractForeign(in Incoming, header, kind string, s Source) (Identity, error) {
	v, err := in.Header.require(header)
	if err != nil {
		return Identity{}, err
	}
	id := foreignID(kind, in.origin(), v)
	return Identity{id, s}, checkID("Incoming.Origin", id) // the header has been checked
}

// require returns the value of a header, ErrNoID if it is not there, and a *dedupstore.InvalidError if it cannot be
// part of an ID.
func (h Header) require(name string) (string, error) {
	v, found, err := h.lookup(name)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", ErrNoID
	}
	if problem := textProblem(v); problem != "" {
		return "", invalid(headerField(name), problem)
	}
	return v, nil
}

// lookup finds a header in any case. An exact match wins; other spellings must agree.
func (h Header) lookup(name string) (value string, found bool, err error) {
	if v, ok := h[name]; ok {
		return v, true, nil
	}
	for k, v := range h {
		if !strings.EqualFold(k, name) {
			continue
		}
		if found && v != value {
			return "", true, invalid(headerField(name), "is there in several spellings with different values")
		}
		value, found = v, true
	}
	return value, found, nil
}
