package oncewatermill

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/internal/isnil"
	"github.com/oncemill/oncemill/producer"
)

// FromMessage returns a Watermill message as a producer.Message. Its ID is the metadata oncemill-id, or else the UUID,
// and may be empty. Its Key is the metadata oncemill-key. Metadata is copied, the payload is shared.
func FromMessage(topic string, msg *message.Message) producer.Message {
	header := producer.Header(msg.Metadata)
	m := producer.Message{
		ID:      header.Get(producer.HeaderID),
		Topic:   topic,
		Key:     header.Get(producer.HeaderKey),
		Header:  maps.Clone(header),
		Payload: msg.Payload,
	}
	maps.DeleteFunc(m.Header, func(name, _ string) bool { return strings.EqualFold(name, producer.HeaderKey) })
	if m.ID == "" {
		m.ID = msg.UUID
	}
	return m
}

// ToMessage returns a producer.Message as a Watermill message with ctx as its context. The ID is its UUID, and is in
// its metadata, as the key is. The header is copied, the payload is shared. Topic and NotBefore have no place in it.
func ToMessage(ctx context.Context, m producer.Message) *message.Message {
	msg := message.NewMessageWithContext(ctx, m.ID, m.Payload)
	maps.Copy(msg.Metadata, m.Header)
	if m.ID != "" {
		msg.Metadata[producer.HeaderID] = m.ID
	}
	if m.Key != "" {
		msg.Metadata[producer.HeaderKey] = m.Key
	}
	return msg
}

// StampDecorator is a Watermill message.PublisherDecorator. Every message leaves with an ID, in the metadata
// oncemill-id and as the UUID, and with trace context.
//
// The ID is the metadata oncemill-id, or else the UUID. Without either the message gets a new one, which is also
// written to the UUID of your message, so a repeated Publish sends the same ID. Nothing else of your messages is
// changed: copies are published, stamped with the context of each message.
//
// If a message cannot be stamped, none of the call is published, and the error says which one and why. Two messages of
// a call with the same oncemill-id but another UUID or payload are refused: metadata copied from another message would
// make two messages one.
func StampDecorator(pub message.Publisher) (message.Publisher, error) {
	if isnil.Nil(pub) {
		return nil, invalid("publisher", "is nil")
	}
	return stampingPublisher{pub}, nil
}

type stampingPublisher struct{ message.Publisher }

func (p stampingPublisher) Publish(topic string, messages ...*message.Message) error {
	stamped, err := stampAll(topic, messages)
	if err != nil {
		return err
	}
	out := make([]*message.Message, len(stamped))
	for i, m := range stamped {
		out[i] = ToMessage(messages[i].Context(), m)
	}
	return p.Publisher.Publish(topic, out...)
}

// stampAll returns the messages stamped, ready to send.
func stampAll(topic string, messages []*message.Message) ([]producer.Message, error) {
	stamped := make([]producer.Message, len(messages))
	first := make(map[string]*message.Message, len(messages))
	for i, msg := range messages {
		if msg == nil {
			return nil, invalid(fmt.Sprintf("message %d", i), "is nil")
		}
		m := FromMessage(topic, msg)
		if m.ID == "" {
			m.ID = producer.NewID()
			msg.UUID = m.ID
		}
		m, err := producer.Outgoing(msg.Context(), m)
		if err != nil {
			return nil, fmt.Errorf("oncewatermill: message %d (UUID %.600q): %w", i, msg.UUID, err)
		}
		if other, twice := first[m.ID]; twice && (other.UUID != msg.UUID || !bytes.Equal(other.Payload, msg.Payload)) {
			return nil, invalid("header "+producer.HeaderID, fmt.Sprintf("is %q for message %d and for another "+
				"message of the call: was metadata copied along?", m.ID, i))
		}
		first[m.ID] = msg
		stamped[i] = m
	}
	return stamped, nil
}

// NewPublisher returns a producer.Publisher as a Watermill publisher. IDs are as with StampDecorator. The call has the
// context of the first message, and each message its own trace context. Close does nothing: close the
// producer.Publisher yourself. It panics without a publisher.
//
// Over an outbox use it for what a handler publishes while it runs, with its context. A Router publishes what a handler
// returned only after its transaction has ended.
func NewPublisher(p producer.Publisher) message.Publisher {
	if isnil.Nil(p) {
		panic("oncewatermill: NewPublisher needs a Publisher")
	}
	return publisher{p}
}

type publisher struct{ publisher producer.Publisher }

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	stamped, err := stampAll(topic, messages)
	if err != nil {
		return err
	}
	return p.publisher.Publish(messages[0].Context(), stamped...)
}

func (publisher) Close() error { return nil }

// FromPublisher returns a Watermill publisher as a producer.Publisher. The Watermill publisher must be synchronous: if
// it returns before the broker has a message, that message counts as published. One of watermill-nats must not have
// TrackMsgID or TrackMessageID. A stream would drop messages with the same ID, for other topics or as replays, and they
// would count as published. Close it yourself. It panics without a publisher.
//
// Messages of a call are published by topic, in their order, each with the context of the call. An error of Watermill
// says nothing about single messages. So all of that topic are reported as unknown, and the other topics are still
// published. Once ctx has ended no further topic is tried, and its messages are reported as unknown too. Messages that
// producer.Outgoing refuses, such as one without an ID or one whose NotBefore lies ahead, are refused one by one.
func FromPublisher(pub message.Publisher) producer.Publisher {
	if isnil.Nil(pub) {
		panic("oncewatermill: FromPublisher needs a Publisher")
	}
	return fromWatermill{pub}
}

type fromWatermill struct{ publisher message.Publisher }

func (p fromWatermill) Publish(ctx context.Context, messages ...producer.Message) error {
	failures := make([]producer.Failure, len(messages)) // those with an Err
	var topics []string
	indexes := map[string][]int{}
	batches := map[string][]*message.Message{}
	for i, m := range messages {
		out, err := producer.Outgoing(ctx, m)
		failures[i] = producer.Failure{Index: i, ID: m.ID, Err: err}
		if err != nil {
			continue
		}
		if _, known := indexes[m.Topic]; !known {
			topics = append(topics, m.Topic)
		}
		indexes[m.Topic] = append(indexes[m.Topic], i)
		batches[m.Topic] = append(batches[m.Topic], ToMessage(ctx, out))
	}
	for _, topic := range topics {
		err := context.Cause(ctx)
		if err == nil {
			err = p.publisher.Publish(topic, batches[topic]...)
		}
		for _, i := range indexes[topic] {
			failures[i].Err, failures[i].Unknown = err, err != nil
		}
	}
	failures = slices.DeleteFunc(failures, func(f producer.Failure) bool { return f.Err == nil })
	if len(failures) == 0 {
		return nil
	}
	return &producer.PublishError{Failures: failures}
}
