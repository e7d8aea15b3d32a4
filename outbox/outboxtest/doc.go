// Package outboxtest is the conformance suite for authors of an [outbox.Store]. It turns each sentence of the Store's
// contract into a case, and each case says why it exists when it fails.
//
//	func TestOutbox_Conforms(t *testing.T) {
//		outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
//			box := newOutbox(t) // empty, in a table of its own
//			return outboxtest.Subject{Store: box, Begin: func(ctx context.Context) (outboxtest.Tx, error) { … }}
//		})
//	}
//
// A store whose clock is the clock of this process is tested in virtual time, with [RunVirtual]. Cases for a Store that
// is an [outbox.Inspector] or an [outbox.Replayer], has Wake, or keeps order, are skipped for others and say so.
//
// # Guarantees
//
//   - A case that needs a lease to end uses one of milliseconds, cases run in parallel, and waiting is for the shortest
//     time that proves something: a slow machine does not make a case fail.
//   - The suite is itself tested with stores that break one rule each, and must reject them by the case of that rule.
//
// # What it does not guarantee
//
// It drives a store by its interface. Crashes of a database, lost replies, and what happens to tables over months are
// for the store's own tests.
package outboxtest
