// Package rpctest has the tests that each package for a library of calls must pass, over real servers and sockets.
package rpctest
