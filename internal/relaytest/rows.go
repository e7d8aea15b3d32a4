package relaytest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Message is a usual message.
func Message(id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Payload: []byte("payload of " + id)}
}

// Numbered are so many IDs.
func Numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("order-%03d", i))
	}
	return ids
}

// Lease leases rows without an unknown attempt.
func Lease(t testing.TB, s outbox.Store, token string, d time.Duration) []outbox.Row {
	t.Helper()
	return LeaseKind(t, s, token, d, false)
}

// LeaseKind leases rows without an unknown attempt, or the others.
func LeaseKind(t testing.TB, s outbox.Store, token string, d time.Duration, suspects bool) []outbox.Row {
	t.Helper()
	rows, err := s.Lease(context.Background(),
		outbox.LeaseRequest{Token: token, Limit: 100, Lease: d, Suspects: suspects})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Settle settles rows that were leased with a token.
func Settle(t testing.TB, s outbox.Store, token string, results ...outbox.Result) {
	t.Helper()
	if err := s.Settle(context.Background(), token, results); err != nil {
		t.Fatal(err)
	}
}

// IDs are those of the rows' messages.
func IDs(rows []outbox.Row) (ids []string) {
	for _, r := range rows {
		ids = append(ids, r.Message.ID)
	}
	return ids
}

// Stats returns those of an outbox.
func Stats(t testing.TB, s outbox.Inspector) outbox.Stats {
	t.Helper()
	stats, err := s.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return stats
}
