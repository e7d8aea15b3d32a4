package testserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"testing"
)

// UsedFile names the environment variable with the file that collects which servers were used.
const UsedFile = "ONCEMILL_TEST_SERVERS_FILE"

// serversToUse names the environment variable that turns servers off: "none" skips every test that needs one.
const serversToUse = "ONCEMILL_TEST_SERVERS"

// Wanted ends the test where no server is wanted: it skips, also with CI=true, for nothing is missing. Every function that
// gives a test its server calls it first.
func Wanted(t testing.TB) {
	t.Helper()
	switch value := os.Getenv(serversToUse); value {
	case "":
	case "none":
		t.Skip("testserver: this test needs a server, and " + serversToUse + " is none")
	default:
		t.Fatalf("testserver: %s is %q: leave it empty, or say none", serversToUse, value)
	}
}

// Missing ends the test because a server cannot be had: it skips, and fails where CI=true. The reason is recorded like a
// server that was used, because go test shows why tests were skipped only when asked.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	if os.Getenv("CI") == "true" {
		t.Fatalf("testserver: %s; with CI=true this is a failure", what)
	}
	Record(t, "SKIPPED: "+what)
	t.Skip("testserver: " + what)
}

// Optional ends the test because a server cannot be had that a machine need not have: it skips, also with CI=true.
func Optional(t testing.TB, format string, args ...any) {
	t.Helper()
	what := fmt.Sprintf(format, args...)
	Record(t, "SKIPPED (optional): "+what)
	t.Skip("testserver: " + what)
}

// NeedProgram returns the path of a program that a test runs beside its server. If it is not in PATH, the test is
// skipped, and fails with CI=true. The hint says how to get it.
func NeedProgram(t testing.TB, name, hint string) string {
	t.Helper()
	Wanted(t)
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "%s is not in PATH (%s)", name, hint)
	}
	return path
}

// Record notes that a real server was used, as one line of the file that UsedFile names.
func Record(t testing.TB, line string) {
	t.Helper()
	name := os.Getenv(UsedFile)
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("testserver: %s: %v", UsedFile, err)
	}
	_, err = f.WriteString(line + "\n")
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err != nil {
		t.Fatalf("testserver: %s: %v", UsedFile, err)
	}
}

// OnFreePort starts something on a free port, and on another one if it fails: somebody may have taken the port.
func OnFreePort(start func(port int) error) (err error) {
	for range 5 {
		var port int
		if port, err = FreePort(); err != nil {
			continue
		}
		if err = start(port); err == nil {
			return nil
		}
	}
	return err
}

// FreePort returns a TCP port of the loopback interface that was free a moment ago, and that systems do not give to
// those who let them choose. Another process can take the port before you use it: be ready to try another, as
// [OnFreePort] does.
func FreePort() (port int, err error) {
	for range 100 {
		port = 10_000 + rand.N(22_000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
