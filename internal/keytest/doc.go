// Package keytest has what tests of idempotencykey need, over stores in memory and over real ones: services, clients
// that repeat themselves, and handlers that miscount. It also has the tests that must pass over every store.
package keytest
