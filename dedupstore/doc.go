// Package dedupstore is the contract between Oncemill and its stores, which remember the messages that were handled. To
// write a store, implement [Store] and test it with package storetest.
//
// A store keeps one record for each [Key] and changes it in atomic steps: [Store.Claim], [Store.Extend] and
// [Store.Settle]. The engine (package oncemill) does everything else, such as heartbeats, retries and policies.
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
//   - One owner: while a lease is live, nobody else gets its key.
//   - Every operation is idempotent for its owner token. If a reply is lost, send the operation again.
//   - The fence grows with every new owner, even when the record was lost in between.
//   - An expired lease erases neither fence nor attempts nor fingerprint. The lease is a field, and the record outlives
//     it.
//   - The store's clock decides about leases. Clocks of different clients are never compared, except by the stores of
//     DynamoDB and Cassandra, whose servers tell no time: there the hosts' clocks decide, within Config.MaxSkew.
//
// A [Transactor] keeps its records in the database that the effects are written to, and commits both together. That is
// an inbox.
//
// # What it does not guarantee
//
// A store that loses records, by failover, eviction or a lost disk, lets messages run again. A lease can end under a
// live holder, and the store cannot undo that holder's effects. The package doc of each store says what it can lose.
//
// [docs/protocol.md] explains the protocol.
//
// [docs/protocol.md]: https://github.com/oncemill/oncemill/blob/main/docs/protocol.md
package dedupstore
