// Package idempotencygrpc lets clients repeat calls of grpc-go safely.
package idempotencygrpc
