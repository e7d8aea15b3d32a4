package pgwal

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/oncemill/oncemill/producer"
)

// What an Emitter writes: the version, the length of the envelope, the envelope, and the payload as it is. Relays and
// programs of several versions work on one log: what is there never changes its meaning.
const packVersion = 1

// An envelope is a message without its payload.
type envelope struct {
	ID     string          `json:"id"`
	Topic  string          `json:"topic"`
	Key    string          `json:"key,omitempty"`
	Header producer.Header `json:"header,omitempty"`
}

func pack(m producer.Message) ([]byte, error) {
	e, err := json.Marshal(envelope{m.ID, m.Topic, m.Key, m.Header})
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, 1+binary.MaxVarintLen32+len(e)+len(m.Payload))
	b = binary.AppendUvarint(append(b, packVersion), uint64(len(e)))
	return append(append(b, e...), m.Payload...), nil
}

func unpack(b []byte) (producer.Message, error) {
	if len(b) == 0 || b[0] != packVersion {
		return producer.Message{}, errors.New("it is not written by an Emitter of a version that this relay knows")
	}
	size, n := binary.Uvarint(b[1:])
	if b = b[1:]; n <= 0 || size > uint64(len(b)-n) {
		return producer.Message{}, errors.New("its envelope is cut short")
	}
	var e envelope
	if err := json.Unmarshal(b[n:n+int(size)], &e); err != nil {
		return producer.Message{}, fmt.Errorf("its envelope cannot be read: %w", err)
	}
	if e.ID == "" || e.Topic == "" {
		return producer.Message{}, errors.New("its envelope has no ID or no topic")
	}
	m := producer.Message{ID: e.ID, Topic: e.Topic, Key: e.Key, Header: e.Header, Payload: slices.Clone(b[n+int(size):])}
	if m.Header == nil {
		m.Header = producer.Header{}
	}
	setHeader(m.Header, producer.HeaderID, m.ID)
	return m, nil
}
