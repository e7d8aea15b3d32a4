// Package http tests requests that become runs, with real databases, a real Redis and processes that are killed.
package http
