// Package keytest has tests of idempotencykey that must hold over every store, in memory or real. It also has what they
// need: services, clients that repeat themselves, handlers that miscount.
package keytest
