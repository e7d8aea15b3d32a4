// Package oncemilltest is for unit tests of your handlers. It delivers a message as a broker does on a bad day. You
// count the effects in your fakes, or in the database.
//
//	charge := oncemilltest.Case{Handler: func(ctx context.Context) error { return charge(ctx, msg) }}
//
//	runs, err := charge.Twice(t.Context())
//	if runs != 1 || err != nil || bank.charges != 1 {
//		t.Errorf("%d runs, %d charges, %v; want one of each", runs, bank.charges, err)
//	}
//
// [Context] is enough for a handler that only asks for its run. [Case.Once] runs a handler in the transaction of an
// inbox.
//
// # What works
//
//   - Any handler: bind the message, or the HTTP request, by a closure. A jetstream.Msg is an interface: embed it in a
//     struct of your test, and write the methods that your handler calls.
//   - Any store. A Case makes real claims and transactions, under an ID of its own. The records stay for Policy.Window.
//   - Nothing waits for leases and backoffs. The lease of a process that crashed ends in a millisecond, and retries are
//     due at once. So real servers are quick, too. With the store in memory a Case also runs under testing/synctest.
//
// # What it does not guarantee
//
// A crash is one of the guard, not of the process. It comes after the handler, and what the handler deferred or started
// goes on. An inbox rolls back; it does not lose its connection.
//
// A Case has no broker. How IDs are found and what is acknowledged is the part of consumer.Processor.
package oncemilltest
