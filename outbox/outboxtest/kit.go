package outboxtest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// Leases and delays are one of these. A long one never ends within a case. A lasting one outlives three short ones.
const (
	long    = time.Hour
	short   = 20 * time.Millisecond
	lasting = 8 * short
)

// waitLimit is for what takes milliseconds on a quiet machine.
const waitLimit = 2 * time.Minute

// A kit is what a case works with: the store, and helpers that fail the case.
type kit struct {
	testing.TB
	Subject
}

// message returns a message without a key.
func message(id string) producer.Message {
	return producer.Message{ID: id, Topic: "orders", Payload: []byte("payload of " + id)}
}

// keyed returns a message with a key.
func keyed(key, id string) producer.Message {
	m := message(id)
	m.Key = key
	return m
}

func (k *kit) begin() Tx {
	k.Helper()
	tx, err := k.Begin(k.Context())
	if err != nil {
		k.Fatalf("begin: %v", err)
	}
	return tx
}

func (k *kit) publish(tx Tx, messages ...producer.Message) {
	k.Helper()
	if err := tx.Publish(k.Context(), messages...); err != nil {
		k.Fatalf("write: %v", err)
	}
}

func (k *kit) commit(tx Tx) {
	k.Helper()
	if err := tx.Commit(k.Context()); err != nil {
		k.Fatalf("commit: %v", err)
	}
}

func (k *kit) rollback(tx Tx) {
	k.Helper()
	if err := tx.Rollback(k.Context()); err != nil {
		k.Fatalf("roll back: %v", err)
	}
}

// write commits messages, in one transaction.
func (k *kit) write(messages ...producer.Message) {
	k.Helper()
	tx := k.begin()
	k.publish(tx, messages...)
	k.commit(tx)
}

// writeIDs commits messages without keys, each in a transaction of its own.
func (k *kit) writeIDs(ids ...string) {
	k.Helper()
	for _, id := range ids {
		k.write(message(id))
	}
}

// A leased is what one lease got.
type leased struct {
	token string
	rows  []outbox.Row
}

func (l leased) ids() []string {
	ids := make([]string, len(l.rows))
	for i, r := range l.rows {
		ids[i] = r.Message.ID
	}
	return ids
}

func (l leased) row(k *kit, id string) outbox.Row {
	k.Helper()
	for _, r := range l.rows {
		if r.Message.ID == id {
			return r
		}
	}
	k.Fatalf("%q is not among what was leased: %q", id, l.ids())
	return outbox.Row{}
}

func (k *kit) leaseAs(r outbox.LeaseRequest) leased {
	k.Helper()
	rows, err := k.Store.Lease(k.Context(), r)
	if err != nil {
		k.Fatalf("lease: %v", err)
	}
	return leased{r.Token, rows}
}

// lease leases up to 100 rows that are no suspects, for long.
func (k *kit) lease() leased {
	k.Helper()
	return k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 100, Lease: long})
}

// suspects leases suspects, for long.
func (k *kit) suspects() leased {
	k.Helper()
	return k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 100, Lease: long, Suspects: true})
}

// expired leases rows, and lets the lease end.
func (k *kit) expired() leased {
	k.Helper()
	l := k.leaseAs(outbox.LeaseRequest{Token: rand.Text(), Limit: 100, Lease: short})
	k.pass()
	return l
}

// pass lets short leases and delays end.
func (k *kit) pass() { k.Advance(2 * short) }

// wants leases, checks that it got these rows in any order, and gives them back.
func (k *kit) wants(what string, ids ...string) {
	k.Helper()
	l := k.lease()
	k.same(what, l.ids(), ids)
	k.settle(l)
}

// wantsSuspects does the same for suspects.
func (k *kit) wantsSuspects(what string, ids ...string) {
	k.Helper()
	l := k.suspects()
	k.same(what, l.ids(), ids)
	k.settle(l)
}

func (k *kit) same(what string, got, want []string) {
	k.Helper()
	if !slices.Equal(sorted(got), sorted(want)) {
		k.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

func sorted(ids []string) []string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return ids
}

func (k *kit) settle(l leased, results ...outbox.Result) {
	k.Helper()
	if err := k.Store.Settle(k.Context(), l.token, results); err != nil {
		k.Fatalf("settle: %v", err)
	}
}

// settleAll settles every row in the same way.
func (k *kit) settleAll(l leased, r outbox.Result) {
	k.Helper()
	results := make([]outbox.Result, len(l.rows))
	for i, row := range l.rows {
		results[i] = r
		results[i].Number = row.Number
	}
	k.settle(l, results...)
}

// settleOne settles one row by its message ID, and gives back the others.
func (k *kit) settleOne(l leased, id string, r outbox.Result) {
	k.Helper()
	r.Number = l.row(k, id).Number
	k.settle(l, r)
}

func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return ids
}

// inspector is the store's, or ends the case without a failure.
func (k *kit) inspector() outbox.Inspector {
	k.Helper()
	i, ok := k.Store.(outbox.Inspector)
	if !ok {
		k.Skipf("skipped: %T does not implement outbox.Inspector", k.Store)
	}
	return i
}

// list returns all pages of a list.
func (k *kit) list(f outbox.Filter) (rows []outbox.RowInfo) {
	k.Helper()
	for after := ""; ; {
		page, err := k.inspector().List(k.Context(), f, after)
		if err != nil {
			k.Fatalf("list: %v", err)
		}
		if n := len(page.Rows); n > 1000 || n > page.Looked {
			k.Fatalf("a page has %d rows of %d, want a few hundred at most", n, page.Looked)
		}
		rows = append(rows, page.Rows...)
		if after = page.Next; after == "" {
			return rows
		}
	}
}

// count returns all parts of a count, added up.
func (k *kit) count(f outbox.Filter) map[outbox.Tally]int {
	k.Helper()
	rows := map[outbox.Tally]int{}
	for after := ""; ; {
		c, err := k.inspector().Count(k.Context(), f, after)
		if err != nil {
			k.Fatalf("count: %v", err)
		}
		for _, t := range c.Tallies {
			rows[outbox.Tally{Topic: t.Topic, State: t.State}] += t.Rows
		}
		if after = c.Next; after == "" {
			return rows
		}
	}
}

// replayer is the store's, or ends the case without a failure.
func (k *kit) replayer() outbox.Replayer {
	k.Helper()
	r, ok := k.Store.(outbox.Replayer)
	if !ok {
		k.Skipf("skipped: %T does not implement outbox.Replayer", k.Store)
	}
	return r
}

// concurrent ends the case without a failure unless several transactions may be open.
func (k *kit) concurrent() {
	k.Helper()
	if !k.Concurrent {
		k.Skip("skipped: Subject.Concurrent is not set")
	}
}
