// Package rpc tests calls that become runs, over a database, with processes that are killed.
package rpc
