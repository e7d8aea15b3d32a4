// Package lineartest checks histories of stores for linearizability: a model of the contract, random operations, and
// the crowd that makes histories of them. Tests of stores bring the server, and the faults.
package lineartest
