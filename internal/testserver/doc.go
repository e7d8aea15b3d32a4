// Package testserver runs real servers for tests: on free loopback ports, each in a directory of its own, stopped when
// the test ends. Programs that users run never import it.
//
// Guarantees:
//
//   - If a server cannot be had, the test is skipped with a message that names what is missing. With CI=true it fails
//     instead, so a green run never hides a missing server.
//   - ONCEMILL_TEST_SERVERS=none skips every test that asks for a server, for a quick first look.
//   - Servers are stopped by process ID. On Linux they also die with the process that started them.
//   - The environment variable ONCEMILL_TEST_SERVERS_FILE names a file. Each server that a run used, or missed, becomes
//     a line of it.
package testserver
