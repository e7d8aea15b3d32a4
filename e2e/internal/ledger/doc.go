// Package ledger says which event explains each extra effect. All rigs of e2e keep their books with it.
//
// A rig tells a [Ledger] what was asked, and what happened to processes and servers. The ledger sees what stores grant
// and confirm, what handlers do and what relays send, in this process or in files of others. [Ledger.Balance] compares
// the two: each message has its effect or a dead letter, and each further effect needs an event of its own.
//
// The rules are those of docs/guarantees.md. One event explains at most one extra effect of a message. The ledger sees
// some events: a lease ends, an outcome cannot be recorded, a handler fails after its effect, an answer is lost. The
// others it learns from the rig, through [Ledger.Happened], with their times.
package ledger
