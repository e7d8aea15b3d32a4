// Package storetest is the conformance suite for authors of a [dedupstore.Store]. It turns each sentence of the Store's
// contract into a case, and each case says why it exists when it fails.
//
//	func TestStore_Conforms(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Subject {
//			return storetest.Subject{Store: newStore(t)}
//		})
//	}
//
// A store whose clock is the clock of this process is tested in virtual time, with [RunVirtual]. [Benchmarks] measures
// every store by the same operations. The cases evidence/… are for a [dedupstore.Inspector]; for others they are
// skipped and say so.
//
// A [dedupstore.Transactor] is tested by [RunInbox] besides. [MemoryInbox] is one for tests of what is built on it.
//
// # Guarantees
//
//   - Cases use keys of their own, random ones, so that they may share a server with others, also with each other.
//   - A case that needs a lease to end uses one of milliseconds, cases run in parallel, and a slow machine does not
//     make one fail: where a case has to come before something ends, it tries again with more time.
//   - The suite is itself tested with stores that break one rule each, and must reject them by the case of that rule.
//
// # What it does not guarantee
//
// It drives a store by its interface. Lost replies, crashes of a server, failover and eviction, and what a record looks
// like to an operator, are for the store's own tests.
package storetest
