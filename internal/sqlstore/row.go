package sqlstore

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// IDOf is what the record of a key is found by: the key itself may be longer than an index takes.
func IDOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return string(sum[:16])
}

// A Row is a record as it was read.
type Row struct {
	ID     string
	Key    string
	Number int64 // of SQLite's row; 0: there is none
	dedupstore.Stored
	Err error // why the record cannot be used

	changed bool
}

// Read reads what a record produced, and notes in Err why it cannot be used. One whose time is over counts as none.
func (r *Row) Read(stubs, contents []byte, now time.Time) {
	if !now.Before(r.Expires) {
		return
	}
	var err error
	o := &r.Outcome
	if o.Produced, err = DecodeProduced(stubs, contents); err != nil {
		r.Err = &dedupstore.RecordError{Key: r.Key, Problem: err.Error()}
	}
	open := []dedupstore.State{dedupstore.Running, dedupstore.Retryable}
	ended := []dedupstore.State{dedupstore.Publishing, dedupstore.Finished}
	kinds := []dedupstore.Kind{dedupstore.Succeeded, dedupstore.Failed, dedupstore.Unknown}
	known := slices.Contains(open, r.State) || slices.Contains(ended, r.State) && slices.Contains(kinds, o.Kind)
	if !known || r.Fence == 0 || max(r.Fence, r.Decided) > math.MaxInt64 {
		r.Err = &dedupstore.RecordError{Key: r.Key, Problem: fmt.Sprintf("has state %q, kind %q, fence %d and decided "+
			"%d: another version wrote it, or something else", r.State, o.Kind, r.Fence, r.Decided)}
	}
}

// Contents is what is kept of messages until they are published; nil for none.
func Contents(s *dedupstore.Stored) []byte {
	if s.State != dedupstore.Publishing || len(s.Outcome.Produced) == 0 {
		return nil
	}
	return EncodeContents(s.Outcome.Produced)
}

// Result is the result of an outcome; nil for none.
func Result(o dedupstore.Outcome) []byte {
	if len(o.Result) == 0 {
		return nil
	}
	return o.Result
}
