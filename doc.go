// Package oncemill makes handlers safe to be given the same message again: effectively-once processing on brokers that
// deliver at least once.
//
// A [Guard] claims a message's key atomically in a store before the handler runs, keeps the claim by a heartbeat while
// it runs, and stores the outcome, failures included, for a dedup window. Every duplicate gets that outcome instead of
// a second run. Most programs do not use a Guard directly but package consumer (Watermill middleware, broker-free
// processing) or [Do] (jobs, requests, tool calls).
//
// # Guarantees (tier 1: leased claim)
//
//   - While the store keeps its records, one holder at a time runs a key, and a key with an outcome does not run again
//     within the dedup window.
//   - A message may be acknowledged only when its outcome is stored and what it produced is published, so that no crash
//     loses it.
//   - What a run produced is published with the same IDs and bytes by whoever gets to it, never by two at once while
//     their leases hold.
//   - A handler whose claim is lost is cancelled with cause [ErrClaimLost], and its outcome is refused.
//   - Attempts are counted in the store: crashes count, interruption by shutdown does not. (Under a policy that parks,
//     both leave the outcome unknown.)
//   - When the store does not answer, handlers do not run, unless the policy says otherwise. A store that is down is
//     asked by one claim in each pause, not by every message; when it answers, everything that was held goes on.
//
// # What is not guaranteed
//
// The handler's effect and the outcome are two writes to two places. A second effect is possible when a holder dies,
// fails retryably or loses its lease after its effect, when the store loses records, when the guard is bypassed, and
// outside the dedup window. docs/guarantees.md has the whole list. Exactly-once delivery does not exist.
package oncemill
