// Package house keeps the house in order. It has only tests, about the source of this module:
//
//   - Each package stands on a floor and imports only lower ones. Of other modules it imports what its row of the table
//     allows (table_test.go).
//   - Every package has a package doc, every exported name a comment.
//   - docs/messages.md explains every log line, docs/errors.txt lists the texts of errors.
//   - Snippets in README.md and docs compile. Links of all pages lead somewhere, and the tests that they name exist.
//   - No test of the protocol sleeps, no struct of production code holds a context but those of a run, no file is
//     binary or names somebody's machine.
//
// It does not judge whether a comment or a page is true or good.
package house
