package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A Relay is what a relay notes of its work, in a file that outlives it, however it ends. It writes a line before it
// sends messages: what a killed relay did not write, it did not send.
type Relay struct {
	number int
	file   *os.File
	linger func() // called between an answer and its note

	mu     sync.Mutex
	calls  int
	leases map[string]map[int64]string // message IDs by token and number of the row
}

// A line is one line of the file of a relay.
type line struct {
	Relay int
	What  string // one of those below
	At    time.Time
	IDs   []string

	Call    int      `json:",omitzero"`  // sent, answered: which call of the publisher
	Refused []string `json:",omitempty"` // answered: those that the broker refused
	Unknown []string `json:",omitempty"` // answered: those that got no answer
	Token   string   `json:",omitempty"` // leased, settled
}

// What a line says.
const (
	lineLeased   = "leased"   // At is not after the lease began
	lineSent     = "sent"     // At is before
	lineAnswered = "answered" // At is after
	lineSettled  = "settled"  // the store confirmed that these are published; At is after
)

// KeepRelay returns the notes of a relay with a number. It calls linger before it notes an answer.
func KeepRelay(t testing.TB, number int, name string, linger func()) *Relay {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &Relay{number: number, file: f, linger: linger, leases: map[string]map[int64]string{}}
}

func (r *Relay) write(l line) {
	l.Relay = r.number
	text, err := json.Marshal(l)
	if err == nil {
		_, err = r.file.Write(append(text, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("the notes of a relay: %v", err)) // an end that everybody sees
	}
}

// Store is a store that notes what is leased and settled.
func (r *Relay) Store(s outbox.Store) outbox.Store { return notedStore{s, r} }

type notedStore struct {
	outbox.Store
	*Relay
}

func (s notedStore) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	leased := line{What: lineLeased, At: time.Now(), Token: r.Token}
	rows, err := s.Store.Lease(ctx, r)
	if err != nil || len(rows) == 0 {
		return rows, err
	}
	ids := map[int64]string{}
	for _, row := range rows {
		ids[row.Number] = row.Message.ID
		leased.IDs = append(leased.IDs, row.Message.ID)
	}
	s.mu.Lock()
	s.leases[r.Token] = ids
	s.mu.Unlock()
	s.write(leased)
	return rows, nil
}

func (s notedStore) Settle(ctx context.Context, token string, results []outbox.Result) error {
	if err := s.Store.Settle(ctx, token, results); err != nil {
		return err
	}
	s.mu.Lock()
	ids := s.leases[token]
	delete(s.leases, token)
	s.mu.Unlock()
	settled := line{What: lineSettled, At: time.Now(), Token: token}
	for _, r := range results {
		if id, known := ids[r.Number]; known && (r.State == outbox.Published || r.State == outbox.Removed) {
			settled.IDs = append(settled.IDs, id)
		}
	}
	s.write(settled)
	return nil
}

// Publisher is a publisher that notes what is sent and answered.
func (r *Relay) Publisher(p producer.Publisher) producer.Publisher { return notedPublisher{p, r} }

type notedPublisher struct {
	producer.Publisher
	*Relay
}

func (p notedPublisher) Publish(ctx context.Context, messages ...producer.Message) error {
	p.mu.Lock()
	p.calls++
	call := p.calls
	p.mu.Unlock()
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	p.write(line{What: lineSent, At: time.Now(), Call: call, IDs: ids})
	err := p.Publisher.Publish(ctx, messages...)
	p.linger()
	answered := line{What: lineAnswered, At: time.Now(), Call: call, IDs: ids}
	var failed *producer.PublishError
	switch {
	case errors.As(err, &failed):
		for _, f := range failed.Failures {
			if f.Unknown {
				answered.Unknown = append(answered.Unknown, f.ID)
			} else {
				answered.Refused = append(answered.Refused, f.ID)
			}
		}
	case err != nil:
		answered.Unknown = ids
	}
	p.write(answered)
	return err
}

// ReadRelays reads what relays noted in a folder. It replaces the sendings that the ledger knows.
func (l *Ledger) ReadRelays(dir string) error {
	relays := map[int]*reader{}
	other := New(nil) // which reads each file from its beginning
	err := other.tail(dir, "*.relay", func(text []byte) error {
		var s line
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		if relays[s.Relay] == nil {
			relays[s.Relay] = &reader{
				sendings: map[string][]Sending{}, leases: map[string][]lease{}, tokens: map[string][]string{},
			}
		}
		relays[s.Relay].read(s)
		return nil
	})
	if err != nil {
		return err
	}
	all := map[string][]Sending{}
	for _, r := range relays {
		for id, sendings := range r.sendings {
			all[id] = append(all[id], sendings...)
		}
	}
	for id, sendings := range all {
		slices.SortStableFunc(sendings, func(a, b Sending) int { return a.Sent.Compare(b.Sent) })
		l.with(id, func(a *account) { a.Sendings = sendings })
	}
	return nil
}

// Relayed tells the ledger how long relays lease messages, and the IDs in the stream that they publish to, in order.
// From then on an effect is a message in that stream, and a sending after the first needs an explanation.
func (l *Ledger) Relayed(lease time.Duration, stream []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease, l.stream = lease, append([]string{}, stream...)
}

// A reader reads the notes of one relay.
type reader struct {
	sendings map[string][]Sending
	calls    []map[string]int    // by call: which sending of a message it is
	leases   map[string][]lease  // that are not settled, by message ID, in their order
	tokens   map[string][]string // the IDs that were leased under a token
}

// A lease of a message. One sends it once.
type lease struct {
	token string
	since time.Time
	sent  bool
}

func (r *reader) read(l line) {
	switch l.What {
	case lineLeased:
		r.tokens[l.Token] = l.IDs
		for _, id := range l.IDs {
			r.leases[id] = append(r.leases[id], lease{token: l.Token, since: l.At})
		}
	case lineSent:
		r.sent(l)
	case lineAnswered:
		r.answered(l)
	case lineSettled:
		r.settled(l)
	}
}

func (r *reader) sent(l line) {
	for len(r.calls) <= l.Call {
		r.calls = append(r.calls, map[string]int{})
	}
	for _, id := range l.IDs {
		r.calls[l.Call][id] = len(r.sendings[id])
		of := r.leases[id]
		i := slices.IndexFunc(of, func(h lease) bool { return !h.sent })
		if i < 0 {
			i = len(of) - 1
		}
		of[i].sent = true
		r.sendings[id] = append(r.sendings[id], Sending{Relay: l.Relay, Leased: of[i].since, Sent: l.At})
	}
}

func (r *reader) answered(l line) {
	for _, id := range l.IDs {
		s := &r.sendings[id][r.calls[l.Call][id]]
		s.Answered = l.At
		switch {
		case slices.Contains(l.Refused, id):
			s.Answer = AnswerRefused
		case slices.Contains(l.Unknown, id):
			s.Answer = AnswerUnknown
		}
	}
}

func (r *reader) settled(l line) {
	for _, id := range l.IDs {
		of := r.sendings[id]
		for i := range of {
			if of[i].Settled.IsZero() && !of[i].Answered.IsZero() && of[i].Answer == "" {
				of[i].Settled = l.At
			}
		}
	}
	for _, id := range r.tokens[l.Token] {
		r.leases[id] = slices.DeleteFunc(r.leases[id], func(h lease) bool { return h.token == l.Token })
		if len(r.leases[id]) == 0 {
			delete(r.leases, id)
		}
	}
	delete(r.tokens, l.Token)
}
