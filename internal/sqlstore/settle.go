package sqlstore

import (
	"slices"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrJoinedOutputs says what would otherwise be lost without a word.
var ErrJoinedOutputs = &dedupstore.InvalidError{
	Field: "Outcome.Produced", Problem: "is not empty, although the handler called Join: its outcome is committed " +
		"without messages, and these will not be published; send them through an outbox in the transaction that joins",
}

// OwnedBy reports whether a record is that of a claim.
func OwnedBy(rec dedupstore.Stored, c dedupstore.Claim) bool {
	return rec.Owner == c.Owner && rec.Fence == c.Fence
}

// Settle ends a step in a store that has Join, after which the outcome is there already when the handler returns.
func Settle(
	rec dedupstore.Stored, c dedupstore.Claim, s dedupstore.Settlement, now time.Time,
) (next *dedupstore.Stored, err error) {
	f, finishes := s.(dedupstore.Finish)
	if finishes && OwnedBy(rec, c) && rec.State != dedupstore.Running && slices.Contains(rec.Settled, c.Owner) {
		switch {
		case f.Outcome.Kind != rec.Outcome.Kind: // Join has committed a success: no dead letter comes after it
			return nil, dedupstore.ErrClaimLost
		case len(f.Outcome.Produced) > 0 && len(rec.Outcome.Produced) == 0:
			return nil, ErrJoinedOutputs
		}
	}
	return rec.Settle(c, s, now)
}
