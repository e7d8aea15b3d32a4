// Package outboxtest is the conformance suite for an [outbox.Store]. Run it if you write an outbox. Each case is one
// sentence of the Store's contract, and says why it exists when it fails.
//
//	func TestOutbox_Conforms(t *testing.T) {
//		outboxtest.Run(t, func(t *testing.T) outboxtest.Subject {
//			box := newOutbox(t) // empty, in a table of its own
//			return outboxtest.Subject{Store: box, Begin: func(ctx context.Context) (outboxtest.Tx, error) { … }}
//		})
//	}
//
// If the store's clock is the clock of this process, test it in virtual time, with [RunVirtual]. Cases for an
// [outbox.Inspector], an [outbox.Replayer], a Store with Wake or one that keeps order are skipped for others and say
// so.
//
// # Guarantees
//
//   - A case that needs a lease to end uses one of milliseconds. Cases run in parallel and wait no longer than they
//     must. A slow machine does not make one fail.
//   - The suite is tested with stores that break one rule each. It must reject each by the case of that rule.
//
// # What it does not guarantee
//
// It drives a store by its interface, and cuts its connections where Subject.Far is set. Test the rest yourself:
// crashes of a database, and what happens to tables over months.
package outboxtest
