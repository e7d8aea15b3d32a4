package oncemill

import (
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// Partial is a result of Do for work of several parts that may end with some of them undone, such as a refund to two
// cards. It is stored as a success, so no part is done again, and every caller learns what remains. To do the rest,
// call Do again with the call that Rest returns, for those parts only:
//
//	for todo := parts; ; {
//		p, err := oncemill.Do(ctx, guard, call,
//			func(ctx context.Context) (oncemill.Partial[Receipts, Part], error) { … todo … })
//		if err != nil || p.Complete() {
//			return err
//		}
//		call, todo = p.Rest(call), p.Remains
//	}
//
// It says what the run knew when it returned, and no more:
//
//   - A part remains if it certainly did not happen. If nobody can tell, return an error instead: the same key runs
//     again, with the same Run.ID for each part. In the rest Run.ID is another one. Run{Key: call.Key}.ID(part) with
//     the first call's key is the same all along.
//   - A run that did nothing returns an error too, or the rest of the rest never ends. If it may take more than
//     Policy.MaxAttempts runs until something can be done, return an Uncounted error, in RetryAfter.
//   - A run that dies recorded nothing. The next one starts with all parts of its key, or is parked, as the policy
//     says.
//   - Each call is remembered for Policy.Window from the end of its own run. The others do not prolong the first one,
//     and a caller that begins with it after that does all parts again. If the rest may take so long, keep the call
//     that Rest returned, with its parts, and go on with that one.
//   - All of it counts against Policy.MaxResultBytes. A longer result is ErrNoResult for later callers, who then do not
//     learn what remains.
type Partial[T, P any] struct {
	Done    T      `json:"done"`              // what the parts that were done ended in
	Remains []P    `json:"remains,omitempty"` // the parts that were not done; empty: all were
	Reason  string `json:"reason,omitempty"`  // why parts remain, for people
}

// Complete reports whether nothing remains.
func (p Partial[T, P]) Complete() bool { return len(p.Remains) == 0 }

// Rest returns the call for the parts that remain of the given one, which ended in p. It has the same scope and an ID
// that is derived from the call's key. A stored outcome never changes, so all that continue it mean the same parts, and
// one of them runs. Fingerprint and Rerun belong to the old content and are left out.
func (p Partial[T, P]) Rest(call Call) Call {
	k := call.Key
	call.Key.ID = ids.Derive("oncemill/rest", k.Tenant, k.Group, k.Handler, k.ID)
	call.Fingerprint, call.Rerun = dedupstore.Fingerprint{}, 0
	return call
}
