package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The name of every record is 40 bytes long: 23 of prefix and scope, 17 of message ID.
const (
	prefix    = "om"
	tenant    = "acme"
	group     = "billing"
	handler   = "charge"
	named     = prefix + ":" + tenant + ":" + group + ":" + handler + ":"
	nameBytes = 40
	idBytes   = nameBytes - len(named)
)

// What every claim says beside its key, as the defaults of a consumer are.
const (
	lease       = 30 * time.Second
	window      = 24 * time.Hour
	maxAttempts = 5
	trace       = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	holder      = "billing-7d9f-x2x9k:417"
	took        = 5 * time.Millisecond                          // as every outcome says
	digest      = "LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ" // SHA-256 of "hello"
)

// A message is one delivery: its ID, and the token of the owner that is to claim it.
type message struct{ id, owner string }

// numbered returns a message with an ID that follows from two numbers, and an owner by chance, in one allocation.
func numbered(cell int, n int64) message {
	const hexDigits = "0123456789abcdef"
	var b [idBytes + 16]byte
	write := func(to []byte, v uint64) {
		for i := len(to) - 1; i >= 0; i-- {
			to[i] = hexDigits[v&15]
			v >>= 4
		}
	}
	write(b[:4], uint64(cell))
	write(b[4:idBytes], uint64(n))
	write(b[idBytes:], rand.Uint64())
	s := string(b[:])
	return message{id: s[:idBytes], owner: s[idBytes:]}
}

// name is what the record of a message is called in Redis.
func (m message) name() string { return named + m.id }

// fields says which of the fields that may be absent a record has, and how big its result is.
type fields struct {
	noTrace, noFingerprint, noHolder bool
	longHolder                       bool // the longest that may be
	result                           []byte
}

func (f fields) request(m message) dedupstore.Request {
	r := dedupstore.Request{
		Key:         dedupstore.Key{Tenant: tenant, Group: group, Handler: handler, ID: m.id},
		Owner:       m.owner,
		Lease:       lease,
		Retention:   window,
		MaxAttempts: maxAttempts,
	}
	if !f.noFingerprint {
		r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: digest}
	}
	if !f.noTrace {
		r.Trace = trace
	}
	if !f.noHolder {
		r.Holder = holder
	}
	if f.longHolder {
		r.Holder = strings.Repeat("h", dedupstore.MaxHolder)
	}
	return r
}

func (f fields) finish() dedupstore.Finish {
	return dedupstore.Finish{
		Outcome:   dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: f.result},
		Retention: window,
		Took:      took,
	}
}

// errState says that a record is not what it must be.
func errState(m message, is any) error { return fmt.Errorf("record %s: is %v", m.name(), is) }
