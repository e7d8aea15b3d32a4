package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore"
)

// A way claims a message, and returns what notes its outcome. The error is errDone for one that has its outcome.
type way func(ctx context.Context, m message) (settle func(ctx context.Context) error, err error)

var errDone = errors.New("the message is done")

// lost says that somebody else settled a message.
func lost(m message) error { return fmt.Errorf("message %s is not its owner's any more", m.name()) }

// What every claim says beside its key, as the defaults of a consumer are.
const (
	lease       = 30 * time.Second
	window      = 24 * time.Hour
	keep        = lease + window
	maxAttempts = 5
	trace       = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	holder      = "billing-7d9f-x2x9k:417"
	took        = 5 * time.Millisecond
	digest      = "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ" // SHA-256 of "hello"
)

// A message is one delivery: its key, and the token of the owner that claims it.
type message struct {
	key   dedupstore.Key
	owner string
}

func newMessage(number int64) message {
	key := dedupstore.Key{Tenant: "acme", Group: "billing", Handler: "charge", ID: fmt.Sprintf("%017x", number)}
	return message{key, fmt.Sprintf("%022d", rand.Uint64())}
}

// name is the key of a record by hand: 38 bytes.
func (m message) name() string { return m.key.String() }

// What a record holds by hand beside its owner. With the owner it is as long as what recordstore encodes.
var (
	claimed = []byte(strings.Repeat("c", 168))
	settled = []byte(strings.Repeat("s", 190))
)

// byStore is the way through a store, and waits until nothing is under way.
func byStore(store dedupstore.Store) (w way, wait func()) {
	lines := kit.NewLines(store, lease)
	w = func(ctx context.Context, m message) (func(context.Context) error, error) {
		got := lines.Claim(ctx, dedupstore.Request{
			Key: m.key, Owner: m.owner, Lease: lease, Retention: window, MaxAttempts: maxAttempts, Trace: trace,
			Holder: holder, Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: digest},
		})
		switch a := got.Answer; {
		case got.Err != nil:
			return nil, got.Err
		case a.Status == dedupstore.Done && a.Outcome.Kind == dedupstore.Succeeded:
			return nil, errDone
		case a.Status != dedupstore.AcquiredRun:
			return nil, fmt.Errorf("message %s is %s", m.name(), a.Status)
		}
		return func(ctx context.Context) error {
			finish := dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: window, Took: took,
			}
			return *lines.Settle(ctx, dedupstore.Settling{Claim: got.Answer.Claim, Settlement: finish})
		}, nil
	}
	return w, lines.Wait
}

// A statement changes rows, and returns how many.
type statement func(ctx context.Context, args ...any) (rows int64, err error)

// byRows is the way with SQL by hand. Insert gets name, owner, record and the time of its end, and does nothing if the
// name is taken. Update gets record, end, name and owner.
func byRows(insert, update statement) way {
	return func(ctx context.Context, m message) (func(context.Context) error, error) {
		rows, err := insert(ctx, m.name(), m.owner, claimed, time.Now().Add(keep).UnixMicro())
		if err == nil && rows == 0 {
			err = errDone
		}
		return func(ctx context.Context) error {
			rows, err := update(ctx, settled, time.Now().Add(window).UnixMicro(), m.name(), m.owner)
			if err == nil && rows != 1 {
				err = lost(m)
			}
			return err
		}, err
	}
}
