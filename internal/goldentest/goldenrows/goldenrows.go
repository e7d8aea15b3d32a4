// Package goldenrows has outboxes read rows as an earlier version wrote them, and go on with them. See package
// goldentest.
package goldenrows

import (
	"reflect"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// A Box is an outbox.
type Box interface {
	outbox.Store
	outbox.Inspector
}

func message(id string) producer.Message {
	return producer.Message{
		ID: id, Topic: "orders", Key: "k", Header: producer.Header{"color": "blue"}, Payload: []byte("of " + id),
	}
}

// Write makes a row that is due, one that is not in this century, and a dead one.
func Write(t *testing.T, box Box, write func(...producer.Message)) {
	t.Helper()
	write(message("dead"))
	settle(t, box, "dead", outbox.Result{State: outbox.Dead, Error: "too large"})
	later := message("later")
	later.NotBefore = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	write(message("due"), later)
}

// Read checks the rows that Write made, and publishes the one that is due.
func Read(t *testing.T, box Box) {
	t.Helper()
	settle(t, box, "due", outbox.Result{State: outbox.Published})
	s, err := box.Stats(t.Context())
	if err != nil || s.Pending != 1 || s.Dead != 1 {
		t.Errorf("then the outbox has %+v, %v, want one row that waits, and a dead one", s, err)
	}
}

// settle leases the only row that is due.
func settle(t *testing.T, box Box, id string, result outbox.Result) {
	t.Helper()
	const token = "token-of-a-relay"
	rows, err := box.Lease(t.Context(), outbox.LeaseRequest{Token: token, Limit: 10, Lease: time.Minute})
	if err != nil || len(rows) != 1 {
		t.Fatalf("leased %+v, %v, want %q", rows, err, id)
	}
	got, want := rows[0].Message, message(id)
	delete(got.Header, producer.HeaderID) // it is the row's
	if !reflect.DeepEqual(got, want) {
		t.Errorf("leased %+v, want %+v", got, want)
	}
	result.Number = rows[0].Number
	if err := box.Settle(t.Context(), token, []outbox.Result{result}); err != nil {
		t.Fatal(err)
	}
}
