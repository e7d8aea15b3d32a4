package pgoutbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

func TestIn_PublishedIfAndOnlyIfTheTransactionCommits(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	b := &broker{}
	stop := start(t, box, b, quick())
	var want []string
	for _, id := range numbered(60) {
		tx := begin(t, db)
		if _, err := tx.Exec(t.Context(), `INSERT INTO orders (id) VALUES ($1)`, id); err != nil {
			t.Fatal(err)
		}
		if err := box.In(tx).Publish(t.Context(), message(id)); err != nil {
			t.Fatal(err)
		}
		if rand.N(2) == 0 {
			tx.Rollback(t.Context())
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
		box.Wake()
	}
	eventually(t, "the outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()
	copies := b.copies()
	if diff := cmp.Diff(want, sorted(copies)); diff != "" {
		t.Errorf("committed and published differ: %s", diff)
	}
	for id, n := range copies {
		if n != 1 {
			t.Errorf("%s was published %d times, want once", id, n)
		}
	}
}

func TestIn_MessageComesBackAsItWas(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	want := []producer.Message{
		{ID: "1", Topic: "a.b", Key: "customer ☃", Payload: []byte{0, 1, 0xff, '\''}, Header: producer.Header{"Content-Type": `say "é"`}},
		{ID: "2", Topic: "a.b"},
		{ID: "3", Topic: "c", Payload: make([]byte, 1<<20)},
	}
	write(t, box, db, want...)
	rows := lease(t, box, "t", time.Minute)
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for i, r := range rows {
		got := r.Message
		if got.Header[producer.HeaderID] != want[i].ID || got.Header["Content-Type"] != want[i].Header["Content-Type"] {
			t.Errorf("row %d has headers %v", i, got.Header)
		}
		if got.ID != want[i].ID || got.Topic != want[i].Topic || got.Key != want[i].Key || !bytes.Equal(got.Payload, want[i].Payload) {
			t.Errorf("row %d is %q %q %q with %d bytes", i, got.ID, got.Topic, got.Key, len(got.Payload))
		}
	}
}

func TestIn_MintsMissingIDsAndLeavesTheCallersMessageAlone(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	m := producer.Message{Topic: "orders", Header: producer.Header{"a": "b"}}
	write(t, box, db, m, m)
	if diff := cmp.Diff(producer.Message{Topic: "orders", Header: producer.Header{"a": "b"}}, m); diff != "" {
		t.Errorf("the caller's message changed: %s", diff)
	}
	rows := lease(t, box, "t", time.Minute)
	if len(rows) != 2 || rows[0].Message.ID == "" || rows[0].Message.ID == rows[1].Message.ID {
		t.Errorf("IDs %q, want two different ones", idsOf(rows))
	}
}

func TestIn_SameIDAndTopicIsOneRow(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	m := message("1")
	elsewhere := m
	elsewhere.Topic = "invoices"
	replay := m
	replay.Header = producer.Header{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"}
	write(t, box, db, m, m, elsewhere, replay, replay)
	write(t, box, db, m)
	if n := count(t, db, "true"); n != 3 {
		t.Errorf("%d rows, want one for each topic and one for the replay", n)
	}
	// Published or not, the row stands for its message as long as it is kept.
	for _, r := range lease(t, box, "t", time.Minute) {
		settle(t, box, "t", outbox.Result{Number: r.Number, State: outbox.Published})
	}
	write(t, box, db, m)
	if n := count(t, db, "published_at IS NULL"); n != 2 { // Settle gave the two others back
		t.Errorf("%d rows to publish, want 2", n)
	}
}

func TestIn_SameIDWithOtherContentIsAConflict(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"))
	payload, key := message("1"), message("1")
	payload.Payload = []byte("another amount")
	key.Key = "another customer"
	for _, m := range []producer.Message{payload, key} {
		err := box.In(begin(t, db)).Publish(t.Context(), m)
		if e, ok := errors.AsType[*outbox.ConflictError](err); !ok || e.ID != "1" || e.Topic != "orders" {
			t.Errorf("error %v, want a conflict", err)
		}
		box, db = newBox(t) // the transaction is still open
		write(t, box, db, message("1"))
	}
}

func TestIn_RefusedMessageNamesTheFieldAndWritesNothing(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	tx := begin(t, db)
	for field, m := range map[string]producer.Message{
		"Message.Topic": {ID: "1"},
		"Message.Key":   {ID: "1", Topic: "orders", Key: "\xff"},
		`header "x"`:    {ID: "1", Topic: "orders", Header: producer.Header{"x": "\xff"}},
	} {
		err := box.In(tx).Publish(t.Context(), message("good"), m)
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != field {
			t.Errorf("%s: error %v", field, err)
		}
	}
	if err := box.In(nil).Publish(t.Context(), message("1")); err == nil {
		t.Error("no transaction, no error")
	}
	if err := box.In(tx).Publish(t.Context()); err != nil {
		t.Errorf("no messages: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "true"); n != 0 {
		t.Errorf("%d rows were written, want none", n)
	}
}

func TestIn_DoneTransactionIsAnError(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	tx := begin(t, db)
	tx.Commit(t.Context())
	if err := box.In(tx).Publish(context.Background(), message("1")); err == nil {
		t.Error("a message was written in a transaction that had ended")
	}
}

func TestIn_ManyInOneCall(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	var all []producer.Message
	for i := range 500 {
		all = append(all, message(fmt.Sprint(i)))
	}
	write(t, box, db, all...)
	b := &broker{}
	stop := start(t, box, b, quick())
	eventually(t, "the outbox is empty", func() bool { return stats(t, box).Pending == 0 })
	stop()
	if n := len(b.copies()); n != 500 || len(b.got) != 500 {
		t.Errorf("%d messages were published, %d different, want 500", len(b.got), n)
	}
}

func TestIn_RepeatedActionRevivesADeadRow(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	write(t, box, db, message("1"))
	row := lease(t, box, "t", time.Minute)[0]
	settle(t, box, "t", outbox.Result{Number: row.Number, State: outbox.Dead, Error: "no"})
	mustExec(t, db, `UPDATE oncemill_outbox SET header = '[1]'`) // of what it died

	tx := begin(t, db)
	if err := box.In(tx).Publish(t.Context(), message("1")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := stats(t, box); s.Dead != 1 {
		t.Errorf("%d dead rows after a rollback, want 1", s.Dead)
	}

	write(t, box, db, message("1"))
	again := lease(t, box, "t2", time.Minute)
	if len(again) != 1 || again[0].Failures != 0 || again[0].Problem != "" || stats(t, box).Dead != 0 {
		t.Errorf("rows %+v, want the dead one pending again, with nothing counted and the new header", again)
	}
}

func TestIn_DelayBeyondWhatTimesCanHoldIsRefused(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	for _, far := range []time.Time{
		time.Unix(1<<63-1, 0), time.Unix(1<<60, 0), time.Unix(-1<<60, 0), time.Unix(-1, 0),
		time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1, 2, 3, 0, 0, 0, 0, time.UTC),
	} {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m := message("1")
		m.NotBefore = far
		err = box.In(tx).Publish(t.Context(), m)
		if invalid, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || invalid.Field != "Message.NotBefore" {
			t.Errorf("%v: error %v, want it refused", far, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIn_LongestDelayIsKept(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	m := message("1")
	m.NotBefore = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
	write(t, box, db, m)
	if rows := lease(t, box, "t", time.Minute); len(rows) != 0 || stats(t, box).Pending != 1 {
		t.Errorf("%d rows are due, want one that waits", len(rows))
	}
}

func TestIn_CopiesThatOnlyLookAlikeAreTwoRows(t *testing.T) {
	t.Parallel()
	box, db := newBox(t)
	for _, h := range []producer.Header{
		{producer.HeaderPurpose: "replay 2"}, {producer.HeaderPurpose: "replay", producer.HeaderGeneration: "2 "},
	} {
		m := message("1")
		m.Header = h
		write(t, box, db, m)
	}
	if rows := lease(t, box, "t", time.Minute); len(rows) != 2 {
		t.Errorf("%d rows, want 2", len(rows))
	}
}
