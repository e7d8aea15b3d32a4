// Package requests has what HTTP requests and calls of other protocols share on their way to a run: keys and scopes, a
// run that outlives its client, and what the guard's answers mean for a client.
package requests
