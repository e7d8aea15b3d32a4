package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
)

// usedFile names the environment variable with the file that collects which servers were used.
const usedFile = "ONCEMILL_TEST_SERVERS_FILE"

// serversToUse names the environment variable that turns servers off: "none" skips every test that needs one.
const serversToUse = "ONCEMILL_TEST_SERVERS"

// wanted ends the test where no server is wanted: it skips, also with CI=true, for nothing is missing. Every function that
// gives a test its server calls it first.
func wanted(t testing.TB) {
	t.Helper()
	switch value := os.Getenv(serversToUse); value {
	case "":
	case "none":
		t.Skip("testserver: this test needs a server, and " + serversToUse + " is none")
	default:
		t.Fatalf("testserver: %s is %q: leave it empty, or say none", serversToUse, value)
	}
}

// missing ends the test because a server cannot be had: it skips, and fails where CI=true. The reason is recorded like a
// server that was used, because go test shows why tests were skipped only when asked.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatalf("testserver: %s; with CI=true this is a failure", what)
	}
	record(t, "SKIPPED: "+what)
	t.Skip("testserver: " + what)
}

// optional ends the test because a server cannot be had that a machine need not have: it skips, also with CI=true.
func optional(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	record(t, "SKIPPED (optional): "+what)
	t.Skip("testserver: " + what)
}

// NeedProgram returns the path of a program that a test runs beside its server. Where it is not in PATH the test is
// skipped, and fails with CI=true. The hint says how to get it.
func NeedProgram(t testing.TB, name, hint string) string {
	t.Helper()
	wanted(t)
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "%s is not in PATH (%s)", name, hint)
	}
	return path
}

// record notes that a real server was used, as one line of the file that usedFile names.
func record(t testing.TB, line string) {
	t.Helper()
	name := os.Getenv(usedFile)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("testserver: %s: %v", usedFile, err)
	}
	_, err = f.WriteString(line + "\n")
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err != nil {
		t.Fatalf("testserver: %s: %v", usedFile, err)
	}
}

// FreePort returns a TCP port of the loopback interface that was free a moment ago. Another process can take it before
// it is used: who starts a server on it must be ready to try another.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
