// Package keytest has what tests of idempotencykey need, over stores in memory and over real ones: services, clients
// that repeat themselves, handlers that miscount, and the tests that must hold over every store.
package keytest
