// Package dedupstore is the contract between Oncemill and the stores that remember which messages were handled.
//
// A store keeps one record per [Key] and changes it in atomic steps: [Store.Claim], [Store.Extend] and [Store.Settle].
// Everything else, such as heartbeats, retries and policies, is the engine's work (package oncemill).
//
// # States of a record
//
//	ABSENT ─claim─► RUNNING ──finish, nothing produced──────────────────► DONE
//	                 ▲   │ └──finish, messages produced──► PUBLISHING ──published──► DONE
//	                 │   └─release──► RETRYABLE                │
//	                 └── claim: due, or lease expired ──┘      └ claim: lease expired: publish only
//
// # Guarantees
//
//   - One owner: while a lease is live, nobody else acquires its key.
//   - Every operation is idempotent per owner token, so an operation whose reply was lost is simply sent again.
//   - The fence grows with every new owner, even when the record was lost in between.
//   - An expired lease never erases fence, attempts or fingerprint: the lease is a field, the record outlives it.
//   - The store's clock decides about leases; clocks of different clients are never compared.
//
// # Transactions
//
// A [Transactor] keeps its records in the database that the effects are written to, and commits both together: an
// inbox.
//
// # What it does not guarantee
//
// A store that loses records (failover, eviction, a lost disk) lets a message run again. A lease can end under a live
// holder, whose effects the store cannot undo. Package docs of the stores say what each can lose.
//
// Authors of stores test theirs with package storetest.
package dedupstore
