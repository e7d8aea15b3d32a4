// Package faults has no code of its own. Its tests keep the promises of docs/guarantees.md while real servers are
// killed, frozen, cut off, filled up and robbed of their data.
//
// Guarantees of each test, beside its own:
//
//   - No message is lost: each one has an effect, or a dead letter.
//   - Each effect after the first of a message is explained from what the store was seen to grant and to confirm, by a
//     case of docs/guarantees.md.
//
// The tests are short by default. With ONCEMILL_PROOF=1 they do what their comments call full.
package faults
