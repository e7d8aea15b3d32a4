package outboxtest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

var writeCases = []testCase{
	{"write/published-if-and-only-if-committed",
		"a message of a transaction that was rolled back tells others of what never happened", func(k *kit) {
			tx := k.begin()
			k.publish(tx, message("rolled back"))
			k.rollback(tx)
			k.write(message("committed"))
			k.wants("after one rollback and one commit", "committed")
		}},
	{"write/late-commit-is-not-skipped", "a store that reads by position passes rows that commit late, for ever",
		func(k *kit) {
			k.concurrent()
			early, late := k.begin(), k.begin()
			k.publish(early, message("first written"))
			k.publish(late, message("second written"))
			k.wants("before any commit")
			k.commit(late)
			l := k.lease()
			k.same("after the later commit", l.ids(), []string{"second written"})
			k.settleAll(l, outbox.Result{State: outbox.Published})
			k.commit(early)
			k.wants("after the earlier one", "first written")
		}},
	{"write/every-order-of-three-transactions",
		"a row that some order of begin, insert and commit hides is never published, or published although it was " +
			"rolled back", func(k *kit) {
			k.concurrent()
			everyOrder(k)
		}},
	{"write/comes-back-as-it-was", "consumers get other bytes than the producer wrote", func(k *kit) {
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		for _, m := range []producer.Message{
			{ID: "bytes", Topic: "orders.created", Key: "customer ä", Header: producer.Header{"a": "ä \"b\" \\ '",
				"empty": "", "A": "other case"}, Payload: all},
			{ID: "empty", Topic: "t", Payload: []byte{}},
			{ID: "nil", Topic: "t"},
			{ID: "text that looks like JSON", Topic: "t", Payload: []byte(`{"a": 1.0,  "b":2}`)},
			{ID: "large", Topic: "t", Payload: make([]byte, 1<<20)},
		} {
			k.write(m)
			l := k.lease()
			got := l.row(k, m.ID).Message
			if got.Topic != m.Topic || got.Key != m.Key || !bytes.Equal(got.Payload, m.Payload) ||
				!got.NotBefore.IsZero() {
				k.Errorf("got %.300v, want %.300v", got, m)
			}
			if got.Payload == nil {
				k.Errorf("the payload of %q is nil, want an empty one: Kafka takes nil for a tombstone", m.ID)
			}
			header := maps.Clone(got.Header)
			maps.DeleteFunc(header, func(name, _ string) bool { _, written := m.Header[name]; return !written })
			if !maps.Equal(header, m.Header) && len(m.Header) > 0 {
				k.Errorf("header %v, want all of %v", got.Header, m.Header)
			}
			if id := got.Header.Get(producer.HeaderID); id != m.ID {
				k.Errorf("header %s is %q, want %q", producer.HeaderID, id, m.ID)
			}
			k.settleAll(l, outbox.Result{State: outbox.Removed})
		}
	}},
	{"write/same-message-is-one-row", "an action that is repeated after a lost reply is published twice", func(k *kit) {
		k.write(message("1"), message("2"))
		k.write(message("1"))
		tx := k.begin()
		k.publish(tx, message("2"))
		k.publish(tx, message("2"))
		k.publish(tx, message("3"), message("3"))
		k.publish(tx)
		k.commit(tx)
		k.wants("after repeated writes", "1", "2", "3")
		l := k.lease()
		k.settleAll(l, outbox.Result{State: outbox.Published})
		k.write(message("1"))
		k.wants("a row that is published and kept")
	}},
	{"write/repeated-blocks-no-others", "one handler that repeats an action stops all writers of the outbox",
		func(k *kit) {
			k.concurrent()
			k.writeIDs("repeated")
			tx := k.begin()
			k.publish(tx, message("repeated"))
			k.othersWrite(tx)
		}},
	{"write/repeated-after-removal-blocks-no-others",
		"a handler that repeats an action whose message has been published stops all writers of the outbox",
		func(k *kit) {
			k.concurrent()
			k.writeIDs("reader", "removed")
			reader := k.begin() // what is removed while it is open stays on the server's disk
			k.publish(reader, message("reader"))
			l := k.lease()
			k.settle(l, outbox.Result{Number: l.row(k, "removed").Number, State: outbox.Removed})
			tx := k.begin()
			k.publish(tx, message("removed"))
			k.othersWrite(tx)
			k.rollback(reader)
		}},
	{"write/other-topics-and-copies-are-other-rows", "a message to a second topic, or a deliberate copy, is swallowed",
		func(k *kit) {
			a, b, c := message("1"), message("1"), message("1")
			b.Topic = "elsewhere"
			c.Header = producer.Header{producer.HeaderPurpose: producer.PurposeReplay, producer.HeaderGeneration: "1"}
			k.write(a, b, c)
			k.wants("one ID to two topics, and as a copy", "1", "1", "1")
		}},
	{"write/same-ID-with-other-content-is-a-conflict",
		"one of two messages that share an ID by mistake is lost in silence", func(k *kit) {
			k.write(message("1"))
			payload, key := message("1"), message("1")
			payload.Payload = []byte("something else")
			key.Key = "somebody else"
			twice := message("twice")
			twice.Payload = payload.Payload
			for _, others := range [][]producer.Message{{payload}, {key}, {message("twice"), twice}} {
				tx := k.begin()
				err := tx.Publish(k.Context(), others...)
				want := others[len(others)-1]
				var conflict *outbox.ConflictError
				if !errors.As(err, &conflict) || conflict.ID != want.ID || conflict.Topic != want.Topic {
					k.Errorf("error %v, want a ConflictError that names the message", err)
				}
				k.rollback(tx)
			}
		}},
	{"write/refused-message-writes-nothing", "a transaction goes on without one of the messages that it was to publish",
		func(k *kit) {
			tx := k.begin()
			for field, bad := range map[string]producer.Message{
				"Message.Topic": {ID: "1"},
				"Message.Key":   {ID: "1", Topic: "orders", Key: "\xff"},
				`header "x"`:    {ID: "1", Topic: "orders", Header: producer.Header{"x": "\xff"}},
			} {
				err := tx.Publish(k.Context(), message("good"), bad)
				var invalid *dedupstore.InvalidError
				if !errors.As(err, &invalid) || invalid.Field != field {
					k.Errorf("error %v, want an InvalidError for %s", err, field)
				}
			}
			k.publish(tx, message("later"))
			k.commit(tx)
			k.wants("after a call that was refused", "later")
		}},
	{"write/not-before-its-time", "a delayed message is published early", func(k *kit) {
		later, delayed := message("later"), message("delayed")
		later.NotBefore = time.Now().Add(long)
		delayed.NotBefore = time.Now().Add(10 * short)
		k.write(later, delayed, message("now"))
		for range 50 {
			l := k.lease()
			if slices.Contains(l.ids(), "delayed") {
				if early := time.Until(delayed.NotBefore); early > 0 {
					k.Errorf("handed out %v early", early)
				}
				k.same("after the time", l.ids(), []string{"delayed", "now"})
				return
			}
			k.same("before the time", l.ids(), []string{"now"})
			k.settle(l)
			k.pass()
		}
		k.Error("never handed out")
	}},
	{"write/delays-that-times-cannot-hold-are-refused", "a message for the far future is published now, or never",
		func(k *kit) {
			year := func(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }
			for _, far := range []time.Time{
				time.Unix(1<<63-1, 0), time.Unix(1<<60, 0), time.Unix(-1<<60, 0), time.Unix(-1, 0),
				year(300_000), year(10_000), year(1).AddDate(0, 1, 2),
			} {
				tx := k.begin()
				m := message("1")
				m.NotBefore = far
				err := tx.Publish(k.Context(), m)
				var invalid *dedupstore.InvalidError
				if !errors.As(err, &invalid) || invalid.Field != "Message.NotBefore" {
					k.Errorf("not before %v: error %v, want an InvalidError for Message.NotBefore", far, err)
				}
				k.rollback(tx)
			}
			m := message("longest delay")
			m.NotBefore = year(10_000).Add(-1)
			k.write(m)
			k.wants("before the year 10000")
		}},
	{"write/missing-IDs-are-minted", "messages without an ID are taken for one, or the caller's change under its hands",
		func(k *kit) {
			m := producer.Message{Topic: "orders", Header: producer.Header{"a": "b"}}
			k.write(m, m)
			if m.ID != "" || len(m.Header) != 1 {
				k.Errorf("the caller's message became %+v", m)
			}
			if l := k.lease(); len(l.rows) != 2 || l.ids()[0] == "" || l.ids()[0] == l.ids()[1] {
				k.Errorf("IDs %q, want two different ones", l.ids())
			}
		}},
	{"write/many-in-one-call", "a call that is larger than a statement loses some of its messages", func(k *kit) {
		ids := numbered("order ", 500)
		messages := make([]producer.Message, len(ids))
		for i, id := range ids {
			messages[i] = message(id)
		}
		k.write(messages...)
		l := k.leaseAs(outbox.LeaseRequest{Token: newToken(), Limit: 1000, Lease: long})
		k.same("of one call", l.ids(), ids)
	}},
	{"write/in-an-ended-transaction-is-an-error", "a message is published without what was to be written with it",
		func(k *kit) {
			tx := k.begin()
			k.commit(tx)
			if err := tx.Publish(k.Context(), message("1")); err == nil {
				k.Error("no error after the commit")
			}
			k.wants("after the error")
		}},
	{"write/copies-that-only-look-alike-are-two-rows", "one of two deliberate copies is swallowed", func(k *kit) {
		a, b := message("1"), message("1")
		a.Header = producer.Header{producer.HeaderPurpose: "replay 2"}
		b.Header = producer.Header{producer.HeaderPurpose: "replay", producer.HeaderGeneration: " 2"}
		k.write(a)
		k.write(b)
		k.wants("two copies", "1", "1")
	}},
	{"write/message-is-no-resend-of-another",
		"the first copy is counted as a repeated one, because its handler copied a header", func(k *kit) {
			m := message("1")
			m.Header = producer.Header{"Oncemill-Resend": "3", "color": "blue"}
			k.write(m)
			h := k.lease().row(k, "1").Message.Header
			if h.Get(producer.HeaderResend) != "" || h.Get("Oncemill-Resend") != "" || h.Get("color") != "blue" {
				k.Errorf("header %v, want no resend", h)
			}
			if len(m.Header) != 2 {
				k.Errorf("the caller's header became %v", m.Header)
			}
		}},
}

// othersWrite has others write messages of their own while a transaction is open, and then rolls it back. There are
// many, because what they run into may depend on their IDs.
func (k *kit) othersWrite(open Tx) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), waitLimit)
	defer cancel()
	for _, id := range numbered("other ", 30) {
		tx := k.begin()
		err := tx.Publish(ctx, message(id))
		if err == nil {
			k.commit(tx)
			continue
		}
		k.rollback(tx)
		k.Errorf("%s cannot be written while the transaction is open: %v", id, err)
		break
	}
	k.rollback(open)
}

// everyOrder walks through orders of the steps of three writers, with a look between all steps.
func everyOrder(k *kit) {
	const writers, steps = 3, 2 // write, end
	var walk func(done [writers]int, order []int)
	run := 0
	walk = func(done [writers]int, order []int) {
		if len(order) == writers*steps {
			run++
			if run%9 == 1 { // ten of the ninety orders, with other ends each
				oneOrder(k, run, order)
			}
			return
		}
		for w := range writers {
			if done[w] < steps {
				next := done
				next[w]++
				walk(next, append(order[:len(order):len(order)], w))
			}
		}
	}
	walk([writers]int{}, nil)
}

// oneOrder runs one order of steps. Which of the writers roll back follows from the number of the run.
func oneOrder(k *kit, run int, order []int) {
	k.Helper()
	open := map[int]Tx{}
	for _, w := range order {
		id := string(rune('a'+run%26)) + string(rune('a'+run/26)) + " by writer " + string(rune('1'+w))
		tx := open[w]
		switch {
		case tx == nil:
			tx = k.begin()
			k.publish(tx, message(id))
			open[w] = tx
			k.wants("after an insert")
		case run>>w&1 == 1:
			k.rollback(tx)
			k.wants("after a rollback")
		default:
			k.commit(tx)
			l := k.lease()
			k.same("after a commit", l.ids(), []string{id})
			k.settleAll(l, outbox.Result{State: outbox.Removed})
		}
	}
}
