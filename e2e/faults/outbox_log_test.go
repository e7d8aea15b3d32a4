package faults_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A relayLog is what a relay says of its work, in a file that outlives it, however it ends. A line is written before
// messages are sent: what a killed relay did not write, it did not send.
type relayLog struct {
	t      *testing.T
	relay  int
	file   *os.File
	linger time.Duration // see relayJob

	mu     sync.Mutex
	calls  int
	leases map[string]map[int64]string // message IDs by token and number of the row
}

// A relayLine is one line.
type relayLine struct {
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

func newRelayLog(t *testing.T, j relayJob) *relayLog {
	t.Helper()
	f, err := os.OpenFile(j.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &relayLog{t: t, relay: j.Relay, file: f, linger: j.Linger, leases: map[string]map[int64]string{}}
}

func (l *relayLog) write(line relayLine) {
	line.Relay = l.relay
	text, err := json.Marshal(line)
	if err == nil {
		_, err = l.file.Write(append(text, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("the log of a relay: %v", err)) // an end that everybody sees
	}
}

// store is a store that writes what is leased and settled.
func (l *relayLog) store(s outbox.Store) outbox.Store { return loggedStore{s, l} }

type loggedStore struct {
	outbox.Store
	log *relayLog
}

func (s loggedStore) Lease(ctx context.Context, r outbox.LeaseRequest) ([]outbox.Row, error) {
	line := relayLine{What: lineLeased, At: time.Now(), Token: r.Token}
	rows, err := s.Store.Lease(ctx, r)
	if err != nil || len(rows) == 0 {
		return rows, err
	}
	ids := map[int64]string{}
	for _, row := range rows {
		ids[row.Number] = row.Message.ID
		line.IDs = append(line.IDs, row.Message.ID)
	}
	s.log.mu.Lock()
	s.log.leases[r.Token] = ids
	s.log.mu.Unlock()
	s.log.write(line)
	return rows, nil
}

func (s loggedStore) Settle(ctx context.Context, token string, results []outbox.Result) error {
	if err := s.Store.Settle(ctx, token, results); err != nil {
		return err
	}
	s.log.mu.Lock()
	ids := s.log.leases[token]
	delete(s.log.leases, token)
	s.log.mu.Unlock()
	line := relayLine{What: lineSettled, At: time.Now(), Token: token}
	for _, r := range results {
		if id, known := ids[r.Number]; known && (r.State == outbox.Published || r.State == outbox.Removed) {
			line.IDs = append(line.IDs, id)
		}
	}
	s.log.write(line)
	return nil
}

// publisher is a publisher that writes what is sent and answered.
func (l *relayLog) publisher(p producer.Publisher) producer.Publisher { return loggedPublisher{p, l} }

type loggedPublisher struct {
	producer.Publisher
	log *relayLog
}

func (p loggedPublisher) Publish(ctx context.Context, messages ...producer.Message) error {
	p.log.mu.Lock()
	p.log.calls++
	call := p.log.calls
	p.log.mu.Unlock()
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	p.log.write(relayLine{What: lineSent, At: time.Now(), Call: call, IDs: ids})
	err := p.Publisher.Publish(ctx, messages...)
	lasts(rand.N(p.log.linger + 1))
	answered := relayLine{What: lineAnswered, At: time.Now(), Call: call, IDs: ids}
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
	p.log.write(answered)
	return err
}
