// Package testserver runs real servers for tests: on free loopback ports, each in a directory of its own, stopped when
// the test ends.
//
// Guarantees:
//
//   - If a server cannot be had, the test is skipped with a message that names what is missing. With CI=true it fails
//     instead, so a green run never hides one.
//   - ONCEMILL_TEST_SERVERS=none skips every test that asks for a server, for a quick first look.
//   - Servers that were started are stopped by process ID. On Linux they also die with the process that started them.
//   - ONCEMILL_TEST_SERVERS_FILE names a file to which a run appends a line for each server that it used, and for each
//     that was missing.
//
// It is test code: programs that users run never import it.
package testserver
