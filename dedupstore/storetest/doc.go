// Package storetest is the conformance suite for a [dedupstore.Store]. Run it if you write a store. Each case is one
// sentence of the Store's contract, and says why it exists when it fails.
//
//	func TestStore_Conforms(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Subject {
//			return storetest.Subject{Store: newStore(t)}
//		})
//	}
//
// If the store's clock is the clock of this process, test it in virtual time, with [RunVirtual]. [Benchmarks] measures
// every store by the same operations. The cases evidence/… are for a [dedupstore.Inspector]; for others they are
// skipped and say so. So are the cases scopes/… for a [dedupstore.ScopeKeeper]. Test a [dedupstore.Transactor] with
// [RunInbox] too. [MemoryInbox] is an inbox in memory, for tests of code that uses one.
//
// # Guarantees
//
//   - Each case uses random keys of its own, so cases may share a server.
//   - A case that needs a lease to end uses one of milliseconds. Cases run in parallel. A slow machine does not make
//     one fail: it tries again with more time.
//   - The suite is tested with stores that break one rule each. It must reject each by the case of that rule.
//
// # What it does not guarantee
//
// It drives a store by its interface. Test the rest yourself: lost replies, crashes of a server, failover and eviction,
// and what a record looks like to an operator.
package storetest
