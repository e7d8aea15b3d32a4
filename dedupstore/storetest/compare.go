package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// found wants the state that a claim found.
func (k *kit) found(a dedupstore.Answer, want dedupstore.State) {
	k.Helper()
	if a.Found != want {
		k.Errorf("a claim that was answered %s found state %q, want %q", a.Status, a.Found, want)
	}
}

func (k *kit) attempt(a dedupstore.Answer, want int) {
	k.Helper()
	if a.Claim.Attempt != want {
		k.Errorf("a claim that was answered %s has attempt %d, want %d", a.Status, a.Claim.Attempt, want)
	}
}

// grew wants the second fence above the first.
func (k *kit) grew(before, after uint64, what string) {
	k.Helper()
	if after <= before {
		k.Errorf("%s: fence %d came after fence %d, want a greater one", what, after, before)
	}
}

// waits wants a Busy answer to name the rest of a long wait, give or take what the case itself takes, and how exactly
// the store knows its server's time.
func (k *kit) waits(a dedupstore.Answer) {
	k.Helper()
	if a.Wait <= long/2 || a.Wait > long+time.Second {
		k.Errorf("Wait is %v of %v", a.Wait, long)
	}
}

// sameOutcome wants an outcome to come back as it was stored.
func (k *kit) sameOutcome(got, want dedupstore.Outcome) {
	k.Helper()
	if diff := outcomeDiff(got, want); diff != "" {
		k.Errorf("the outcome came back with %s", diff)
	}
}

// keptOutcome wants a final outcome to be as it was stored, but for headers and payloads, which must be gone. Whether
// keys are kept is the store's choice.
func (k *kit) keptOutcome(got, want dedupstore.Outcome) {
	k.Helper()
	want.Produced, got.Produced = dedupstore.Stubs(want.Produced), slices.Clone(got.Produced)
	for i, p := range got.Produced {
		if len(p.Payload) == 0 {
			got.Produced[i].Payload = nil
		}
		if i < len(want.Produced) && p.Key == "" {
			want.Produced[i].Key = ""
		}
	}
	k.sameOutcome(got, want)
}

// outcomeDiff names the first difference, without printing bytes by the megabyte. A result without bytes is the same as
// nil; a payload is not.
func outcomeDiff(got, want dedupstore.Outcome) string {
	switch {
	case got.Kind != want.Kind:
		return fmt.Sprintf("Kind %q, want %q", got.Kind, want.Kind)
	case got.Exhausted != want.Exhausted:
		return fmt.Sprintf("Exhausted %t, want %t", got.Exhausted, want.Exhausted)
	case got.Reason != want.Reason:
		return fmt.Sprintf("Reason %q, want %q", got.Reason, want.Reason)
	case got.Truncated != want.Truncated:
		return fmt.Sprintf("Truncated %t, want %t", got.Truncated, want.Truncated)
	case !bytes.Equal(got.Result, want.Result):
		return "Result " + bytesDiff(got.Result, want.Result)
	case len(got.Produced) != len(want.Produced):
		return fmt.Sprintf("%d produced messages, want %d", len(got.Produced), len(want.Produced))
	}
	for i, p := range got.Produced {
		w := want.Produced[i]
		switch {
		case p.ID != w.ID || p.Topic != w.Topic || p.Key != w.Key:
			return fmt.Sprintf("Produced[%d] of ID %q, topic %q, key %q, want %q, %q, %q", i, p.ID, p.Topic, p.Key,
				w.ID, w.Topic, w.Key)
		case !maps.Equal(p.Header, w.Header):
			return fmt.Sprintf("Produced[%d].Header %q, want %q", i, p.Header, w.Header)
		case !bytes.Equal(p.Payload, w.Payload):
			return fmt.Sprintf("Produced[%d].Payload %s", i, bytesDiff(p.Payload, w.Payload))
		case (p.Payload == nil) != (w.Payload == nil):
			return fmt.Sprintf("Produced[%d].Payload is nil: %t, want %t: "+
				"Kafka takes nil for a tombstone, and nothing else",
				i, p.Payload == nil, w.Payload == nil)
		}
	}
	return ""
}

func bytesDiff(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("of %d bytes, byte %d is %#x, want %d bytes, there %#x", len(got), i, got[i], len(want),
				want[i])
		}
	}
	return fmt.Sprintf("of %d bytes, want %d", len(got), len(want))
}
