package producer

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
)

// FromWatermillMessage returns a Watermill message as a Message: its ID is the metadata oncemill-id, or else the UUID,
// and may be empty; its Key is the metadata oncemill-key. Metadata is copied, the payload is shared.
func FromWatermillMessage(topic string, msg *message.Message) Message {
	header := Header(msg.Metadata)
	m := Message{
		ID:      header.Get(HeaderID),
		Topic:   topic,
		Key:     header.Get(HeaderKey),
		Header:  header.without(HeaderKey),
		Payload: msg.Payload,
	}
	if m.ID == "" {
		m.ID = msg.UUID
	}
	return m
}

// ToWatermillMessage returns a Message as a Watermill message with ctx as its context: the ID is its UUID and, as the
// key, in its metadata. The header is copied, the payload is shared. Topic and NotBefore have no place in it.
func ToWatermillMessage(ctx context.Context, m Message) *message.Message {
	msg := message.NewMessageWithContext(ctx, m.ID, m.Payload)
	maps.Copy(msg.Metadata, m.Header)
	if m.ID != "" {
		msg.Metadata[HeaderID] = m.ID
	}
	if m.Key != "" {
		msg.Metadata[HeaderKey] = m.Key
	}
	return msg
}

// StampDecorator is a Watermill message.PublisherDecorator: every message leaves with an ID, in the metadata
// oncemill-id and as the UUID, and with trace context.
//
// The metadata oncemill-id is the ID; without it the UUID is; without either the message gets a new one, which is
// written to the UUID of the caller's message too, so that a repeated Publish sends the same ID. Nothing else of the
// caller's messages is changed: what is published are copies, stamped with the context of each message.
//
// If a message cannot be stamped, none of the call is published and the error says which and why. Messages of one call
// that have an oncemill-id in common, but not UUID and payload, are refused: metadata that was copied from another
// message would make two messages one.
func StampDecorator(pub message.Publisher) (message.Publisher, error) {
	if pub == nil {
		return nil, &InvalidError{"publisher", "is nil"}
	}
	return stampingPublisher{pub}, nil
}

type stampingPublisher struct{ message.Publisher }

func (p stampingPublisher) Publish(topic string, messages ...*message.Message) error {
	stamped, err := stampWatermill(topic, messages)
	if err != nil {
		return err
	}
	out := make([]*message.Message, len(stamped))
	for i, m := range stamped {
		out[i] = ToWatermillMessage(messages[i].Context(), m)
	}
	return p.Publisher.Publish(topic, out...)
}

// stampWatermill returns the messages as they are to be sent.
func stampWatermill(topic string, messages []*message.Message) ([]Message, error) {
	stamped := make([]Message, len(messages))
	first := make(map[string]*message.Message, len(messages))
	for i, msg := range messages {
		if msg == nil {
			return nil, &InvalidError{fmt.Sprintf("message %d", i), "is nil"}
		}
		m := FromWatermillMessage(topic, msg)
		if m.ID == "" {
			m.ID = NewID()
			msg.UUID = m.ID
		}
		m, err := Outgoing(msg.Context(), m)
		if err != nil {
			return nil, fmt.Errorf("producer: message %d (UUID %.600q): %w", i, msg.UUID, err)
		}
		if other, twice := first[m.ID]; twice && (other.UUID != msg.UUID || !bytes.Equal(other.Payload, msg.Payload)) {
			return nil, &InvalidError{headerField(HeaderID), fmt.Sprintf("is %q for message %d and for another message of the call: was metadata copied along?", m.ID, i)}
		}
		first[m.ID] = msg
		stamped[i] = m
	}
	return stamped, nil
}

// ToWatermill returns a Publisher as a Watermill publisher. IDs are as with StampDecorator. The context of the first
// message is that of the call; trace context comes from each message's own. Close does nothing: the Publisher belongs
// to who made it. Over an outbox it is for what a handler publishes while it runs, with its context: a Router publishes what
// a handler returned when its transaction has ended.
func ToWatermill(p Publisher) message.Publisher { return watermillFace{p} }

type watermillFace struct{ publisher Publisher }

func (f watermillFace) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	stamped, err := stampWatermill(topic, messages)
	if err != nil {
		return err
	}
	return f.publisher.Publish(messages[0].Context(), stamped...)
}

func (watermillFace) Close() error { return nil }

// FromWatermill returns a Watermill publisher as a Publisher. The Watermill publisher must be synchronous: it may
// return only when the broker has the messages, or a message that the broker never got counts as published. One of
// watermill-nats must not have TrackMsgID or TrackMessageID: a stream would drop messages that have one ID, for other topics
// or as replays, and they would count as published. Closing it is up to who made it.
//
// Messages of a call are published by topic, in their order, each with the context of the call. An error of Watermill
// says nothing about single messages: all of that topic are reported as unknown, and the other topics are still
// published. Once ctx has ended no further topic is tried: its messages are reported as unknown too, since nobody refused
// them. What Outgoing refuses, such as a message without ID or one whose NotBefore lies ahead, is refused one by one.
func FromWatermill(pub message.Publisher) Publisher { return fromWatermill{pub} }

type fromWatermill struct{ publisher message.Publisher }

func (p fromWatermill) Publish(ctx context.Context, messages ...Message) error {
	failures := make([]Failure, len(messages)) // those with an Err
	var topics []string
	indexes := map[string][]int{}
	batches := map[string][]*message.Message{}
	for i, m := range messages {
		out, err := Outgoing(ctx, m)
		failures[i] = Failure{Index: i, ID: m.ID, Err: err}
		if err != nil {
			continue
		}
		if _, known := indexes[m.Topic]; !known {
			topics = append(topics, m.Topic)
		}
		indexes[m.Topic] = append(indexes[m.Topic], i)
		batches[m.Topic] = append(batches[m.Topic], ToWatermillMessage(ctx, out))
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
	return publishError(failures)
}

// publishError keeps the failures that have an error.
func publishError(failures []Failure) error {
	var failed []Failure
	for _, f := range failures {
		if f.Err != nil {
			failed = append(failed, f)
		}
	}
	if failed == nil {
		return nil
	}
	return &PublishError{Failures: failed}
}
