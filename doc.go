// Package oncemill makes it safe to give a handler the same message again. Brokers deliver at least once; Oncemill
// makes the processing effectively once.
//
// A [Guard] claims a message's key in a store before the handler runs. A heartbeat keeps the claim while it runs. The
// outcome, a failure too, is stored for a dedup window, and every duplicate gets that outcome instead of a second run.
//
// Most programs use package consumer and a package below transport. For jobs, requests and tool calls there is [Do]:
//
//	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
//	refund, err := oncemill.Do(ctx, guard, call, func(ctx context.Context) (Refund, error) {
//		return bank.Refund(ctx, ticket, oncemill.FromContext(ctx).ID("refund"))
//	})
//
// # Guarantees of a leased claim
//
//   - While the store keeps its records, one holder at a time runs a key. A key with an outcome does not run again
//     within the dedup window.
//   - A message may be acknowledged only when its outcome is stored and what it produced is published. So no crash
//     loses it.
//   - What a run produced is published with the same IDs and bytes, whoever publishes it. Two never publish it at once
//     while their leases hold.
//   - A handler that loses its claim is cancelled with cause [ErrClaimLost], and its outcome is refused.
//   - The store counts attempts. A crash counts; a shutdown does not. Under a policy that parks, both leave the outcome
//     unknown.
//   - When the store does not answer, no handler runs, unless the policy says otherwise. One claim asks in each pause.
//     When the store answers, all that waited goes on.
//
// An inbox promises more: see dedupstore.Transactor.
//
// # What it does not guarantee
//
// Under a leased claim, effect and outcome are two writes to two places. A second effect is possible
//
//   - when a holder dies, fails retryably or loses its lease after its effect;
//   - when the store loses records;
//   - when something bypasses the guard;
//   - outside the dedup window.
//
// [docs/guarantees.md] has the whole list. Exactly-once delivery does not exist.
//
// [docs/guarantees.md]: https://github.com/oncemill/oncemill/blob/main/docs/guarantees.md
package oncemill
