package storetest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var limitCases = []testCase{
	{
		name: "limits/results-of-64-KiB",
		why:  "results and messages come back whole",
		test: func(k *kit) { k.sized(64 << 10) },
	},
	{
		name: "limits/results-of-10-MB",
		why:  "results and messages come back whole, also big ones",
		test: func(k *kit) {
			const large = 10_000_000
			if k.MaxBytes == 0 {
				k.sized(large)
				return
			}
			k.sized(k.MaxBytes * 2 / 5)
			c := k.run("too large")
			f := finish(succeeded(strings.Repeat("x", large)))
			err := dedupstore.SettleOne(k.Context(), k.Store, c, f)
			if !errors.Is(err, dedupstore.ErrTooLarge) || !errors.Is(err, dedupstore.ErrFull) {
				k.Errorf("a result of %d bytes: %v, want ErrTooLarge, for MaxBytes is %d", large, err, k.MaxBytes)
			}
			k.settle(c, finish(succeeded("smaller"))) // the claim is as it was
		},
	},
	{
		name: "limits/what-just-fits-can-be-taken-over",
		why:  "a record that has no room for another owner keeps its messages for ever",
		test: func(k *kit) {
			r := k.brief("1")
			r.Holder = strings.Repeat("h", dedupstore.MaxHolder)
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			p, err := receipt, dedupstore.ErrFull
			for p.Payload = make([]byte, k.MaxBytes+16); errors.Is(err, dedupstore.ErrFull); {
				p.Payload = p.Payload[16:]
				err = dedupstore.SettleOne(k.Context(), k.Store, c, finishTo(succeeded(""), p))
			}
			if err != nil {
				k.Fatal(err)
			}
			k.pass(short)
			for range dedupstore.MaxHistory + 1 {
				r.Owner = newOwner()
				c = k.expired(r, dedupstore.AcquiredPublish).Claim
			}
			k.settle(c, published())
		},
	},
	{
		name: "limits/nothing-is-not-something",
		why: "empty and missing values become nothing else; they are the same, but for payloads, of which nil is a " +
			"tombstone to Kafka",
		test: func(k *kit) {
			r := k.request("1")
			o := dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: []byte{}, Produced: []dedupstore.Produced{
				{ID: "empty", Header: map[string]string{}, Payload: []byte{}}, {ID: "nil"},
			}}
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, o)
			k.settle(c, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)

			// An empty list of messages is nothing to publish.
			nothing := dedupstore.Outcome{Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{}}
			k.settle(k.run("2"), dedupstore.Finish{Outcome: nothing, Retention: long})
			k.claim(k.request("2"), dedupstore.Done)
		},
	},
	{
		name: "limits/many-messages-in-order",
		why:  "what a run produced is published in its order",
		test: func(k *kit) {
			var produced []dedupstore.Produced
			for i := range 1000 {
				p := receipt
				p.ID, p.Payload = "receipt-"+strings.Repeat("9", i%7)+string(rune('A'+i%26)),
					[]byte{byte(i), byte(i >> 8)}
				produced = append(produced, p)
			}
			r := k.request("1")
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			f := finishTo(succeeded(""), produced...)
			k.settle(c, f)
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, f.Outcome)
			k.settle(c, published())
			k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, f.Outcome)
		},
	},
	{
		name: "limits/longest-values",
		why:  "what the contract allows has to fit",
		test: func(k *kit) {
			r := k.request(strings.Repeat("界", dedupstore.MaxID/3))
			r.Owner, r.Trace = strings.Repeat("o", 64), strings.Repeat("t", 64)
			r.Fingerprint = dedupstore.Fingerprint{Scheme: strings.Repeat("s", 64), Sum: strings.Repeat("f", 128)}
			r.Key.Tenant, r.Key.Handler = strings.Repeat("t", dedupstore.MaxScopePart),
				strings.Repeat("é", dedupstore.MaxScopePart/2)
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			o := failed(strings.Repeat("r", dedupstore.MaxReason))
			o.Produced = []dedupstore.Produced{{ID: strings.Repeat("i", dedupstore.MaxID), Topic: "t"}}
			k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, o)
			k.settle(c, published())
			r.Owner = strings.Repeat("p", 64)
			a := k.claim(r, dedupstore.Done)
			k.keptOutcome(a.Outcome, o)
			if a.Trace != r.Trace {
				k.Errorf("trace is %q, want %q", a.Trace, r.Trace)
			}
			r.Fingerprint.Sum = strings.Repeat("f", 127) + "g"
			k.claim(r, dedupstore.Mismatch)
		},
	},
	{
		name: "limits/longest-durations",
		why:  "times far ahead must not overflow into the past",
		test: func(k *kit) {
			r := k.request("1")
			r.Lease, r.Retention = farthest, farthest
			c := k.claim(r, dedupstore.AcquiredRun).Claim
			if a := k.claim(k.request("1"), dedupstore.Busy); a.Wait < farthest/2 || a.Wait > farthest+time.Second {
				k.Errorf("Wait is %v of %v", a.Wait, farthest)
			}
			k.extend(c, farthest)
			k.settle(c, dedupstore.Release{Delay: farthest})
			if a := k.claim(k.request("1"), dedupstore.Busy); a.Wait < farthest/2 || a.Wait > farthest+time.Second {
				k.Errorf("Wait is %v of %v", a.Wait, farthest)
			}
			r = k.request("2")
			r.Lease, r.Retention = farthest, farthest
			c = k.claim(r, dedupstore.AcquiredRun).Claim
			k.settle(c, dedupstore.Finish{Outcome: finishTo(succeeded(""), receipt).Outcome, Retention: farthest})
			k.claim(k.request("2"), dedupstore.Busy)
			k.settle(c, dedupstore.Published{Retention: farthest})
			k.claim(k.request("2"), dedupstore.Done)
		},
	},
	{
		name: "limits/shortest-durations",
		why:  "a millisecond is allowed, and is over after one",
		test: func(k *kit) {
			r := k.request("1")
			r.Lease = time.Millisecond
			k.expired(r, dedupstore.AcquiredRun)
			k.attempt(k.claim(k.request("1"), dedupstore.AcquiredRun), 2)
		},
	},
	{
		name: "limits/headers-by-name",
		why:  "names of headers are compared exactly, and each keeps its value",
		test: func(k *kit) {
			p := receipt
			p.Header = map[string]string{}
			for _, name := range []string{
				"a", "A", "a ", "a-b", "a_b", "a.b", "a:b", "ä", "traceparent", "content-type", "__proto__", "0",
			} {
				p.Header[name] = "value of " + name
			}
			r := k.request("1")
			f := finishTo(succeeded(""), p)
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, f)
			k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, f.Outcome)
		},
	},
}

// sized stores a result and a message of n bytes of every value, and reads them back.
func (k *kit) sized(n int) {
	k.Helper()
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	r := k.request("1")
	c := k.claim(r, dedupstore.AcquiredRun).Claim
	o := dedupstore.Outcome{Kind: dedupstore.Succeeded, Result: data, Produced: []dedupstore.Produced{receipt, receipt}}
	o.Produced[1].ID, o.Produced[1].Payload = "large", bytes.Clone(data)
	k.settle(c, dedupstore.Finish{Outcome: o, Retention: long})
	k.sameOutcome(k.claim(r, dedupstore.AcquiredPublish).Outcome, o)
	k.settle(c, published())
	k.keptOutcome(k.claim(k.request("1"), dedupstore.Done).Outcome, o)
}
