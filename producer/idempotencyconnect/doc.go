// Package idempotencyconnect lets clients repeat calls of connect-go safely.
package idempotencyconnect
