package sourcetest

import (
	"errors"
	"sync"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A toyBroker is a queue in memory. It delivers again what was not acknowledged in time. It, or a source of it, breaks
// the rule.
type toyBroker struct {
	rule    string
	ackWait time.Duration

	mu        sync.Mutex
	messages  []*toyMessage // in their order; those that have ended are gone
	delivered int
	down      bool
	deaf      bool                // acks get lost
	cut       map[*toySource]bool // members that it does not hear
	leaks     chan struct{}       // closed at the end of the test
}

type toyMessage struct {
	Message
	due     time.Time // it may be delivered
	holder  *toySource
	token   int // of its last delivery
	count   int
	expires time.Time // the end of that delivery
}

var errDown = errors.New("the broker is down")

const toyAckWait = time.Second

func newToy(rule string) *toyBroker {
	return &toyBroker{rule: rule, ackWait: toyAckWait, cut: map[*toySource]bool{}, leaks: make(chan struct{})}
}

func (b *toyBroker) breaks(rule string) bool { return b.rule == rule }

func (b *toyBroker) publish(messages ...Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range messages {
		b.messages = append(b.messages, &toyMessage{Message: m})
	}
}

// A toyDelivery is a message on its way to a member.
type toyDelivery struct {
	Message
	header producer.Header
	token  int
	count  int
}

// fetch delivers the first message that is due.
func (b *toyBroker) fetch(s *toySource) (d toyDelivery, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down || b.cut[s] {
		return d, false
	}
	now := time.Now()
	for _, m := range b.messages {
		taken := m.holder != nil && (now.Before(m.expires) || b.breaks("never-delivers-again"))
		if taken && !(b.breaks("delivers-to-all") && m.holder != s) || now.Before(m.due) {
			continue
		}
		b.delivered++
		m.count++
		m.token = b.delivered
		m.holder, m.expires = s, now.Add(b.ackWait)
		return toyDelivery{m.Message, producer.Header{producer.HeaderID: m.ID}, m.token, m.count}, true
	}
	return d, false
}

// tell changes what a delivery of a source is of, unless it is another's by now, and drops the message if it is to end.
func (b *toyBroker) tell(s *toySource, d toyDelivery, change func(m *toyMessage) (ends bool)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return errDown
	}
	if b.deaf || b.cut[s] {
		return nil
	}
	for i, m := range b.messages {
		if m.token != d.token {
			continue
		}
		if change(m) {
			b.messages = append(b.messages[:i:i], b.messages[i+1:]...)
		}
		return nil
	}
	if b.breaks("gives-back-what-is-anothers") { // a broker that takes an old token for a new message
		m := &toyMessage{Message: d.Message}
		if !change(m) {
			b.messages = append(b.messages, m)
		}
	}
	return nil
}

func (b *toyBroker) subject() Subject {
	return Subject{
		Topic: "orders", AckWait: b.ackWait, Publish: b.publish,
		Open: func(m Member) consumerSource { return newToySource(b, m) },
		Left: func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return len(b.messages)
		},
		Deliveries: func() int {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.delivered
		},
		Restart: func() {
			b.set(func() { b.down = true })
			<-after(3 * short)
			b.set(func() { b.down = false })
		},
		LoseAcks: func() func() {
			b.set(func() { b.deaf = true })
			return func() { b.set(func() { b.deaf = false }) }
		},
		Cut: func(s consumerSource) func() {
			b.set(func() { b.cut[s.(*toySource)] = true })
			return func() { b.set(func() { delete(b.cut, s.(*toySource)) }) }
		},
		Batches: b.batches,
	}
}

func (b *toyBroker) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}
