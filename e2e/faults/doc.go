// Package faults has only tests. They keep the promises of docs/guarantees.md while real servers are killed, frozen,
// cut off, filled up and robbed of what they stored.
//
// Guarantees of each test, beside its own:
//
//   - No message is lost: each one has an effect, or a dead letter.
//   - Each effect after the first of a message is explained by a case of docs/guarantees.md: see e2e/internal/ledger. It
//     needs an event of its own, from what the store was seen to grant and to confirm, or from what the test did.
//
// The tests are short by default. With ONCEMILL_PROOF=1 they run at the full length that their comments name.
package faults
