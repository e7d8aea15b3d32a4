package dedupstore

import (
	"bytes"
	"maps"
	"slices"
)

// Kind says how processing ended.
type Kind string

// The kinds of outcome.
const (
	Succeeded Kind = "succeeded"
	Failed    Kind = "failed"  // permanently, or because the attempts were spent
	Unknown   Kind = "unknown" // parked: it may or may not have happened, and must not be tried again
)

// An Outcome is the result of processing a message, failures included. Every duplicate gets it.
type Outcome struct {
	Kind Kind

	// Exhausted says of a Failed outcome that the attempts were spent, not that the handler called it permanent. It
	// does not mean that nothing happened: the last holder may have made its effect and died.
	Exhausted bool

	// Reason says why, for failed and unknown outcomes. Valid UTF-8 of at most MaxReason bytes.
	Reason string

	// Result is what the handler returned, for duplicates to get.
	Result []byte

	// Truncated says that the result was over the limit, and that Result holds only its beginning, or that it could not
	// be stored, and Result is empty.
	Truncated bool

	// Produced are the messages that the run produced, or the dead letter of a failure. They are published with these
	// IDs and bytes until they are known to be published; then IDs, topics and keys are kept, headers and payloads
	// dropped.
	Produced []Produced
}

// Clone returns a copy that shares nothing with the outcome.
func (o Outcome) Clone() Outcome {
	o.Result = bytes.Clone(o.Result)
	o.Produced = slices.Clone(o.Produced)
	for i := range o.Produced {
		o.Produced[i].Header = maps.Clone(o.Produced[i].Header)
		o.Produced[i].Payload = bytes.Clone(o.Produced[i].Payload)
	}
	return o
}

// Produced is a message that is part of an outcome.
type Produced struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Key     string            `json:"key,omitempty"` // partition or ordering key
	Header  map[string]string `json:"header,omitempty"`
	Payload []byte            `json:"payload,omitzero"` // nil is a tombstone to Kafka, and not the same as an empty one
}

// Stubs returns the messages without headers and payloads: what a store keeps once they are published.
func Stubs(produced []Produced) []Produced {
	if len(produced) == 0 {
		return nil
	}
	stubs := make([]Produced, len(produced))
	for i, p := range produced {
		stubs[i] = Produced{ID: p.ID, Topic: p.Topic, Key: p.Key}
	}
	return stubs
}

// A Fingerprint identifies the content of a message. Fingerprints are compared only within one scheme. So a change in
// how they are computed does not turn every redelivery into a mismatch.
type Fingerprint struct {
	Scheme string // how Sum was computed, such as "sha256"; ASCII letters, digits, "-", ".", "_"
	Sum    string // the digest in base64url without padding
}

// IsZero reports whether there is no fingerprint.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Differs reports whether the two are known to be of different content: both present, of one scheme, with other sums.
func (f Fingerprint) Differs(g Fingerprint) bool {
	return !f.IsZero() && !g.IsZero() && f.Scheme == g.Scheme && f.Sum != g.Sum
}
