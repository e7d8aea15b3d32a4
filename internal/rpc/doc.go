// Package rpc runs unary calls of protobuf services once for each key, and repeats their responses. Packages for
// libraries, such as idempotencyconnect and idempotencygrpc, are thin layers on it.
package rpc
