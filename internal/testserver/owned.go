package testserver

import (
	"os"
	"testing"
	"time"
)

// An Owned is the part of a server by which a test starts, kills and restarts its process.
type Owned struct {
	t           testing.TB
	name, given string
	run         func() (*Process, error)
	process     *Process // nil: shared, or run by somebody else
}

// Own returns a server that is not started. The variable given names the environment variable of a server that somebody
// else runs; "" where there is none. Run starts the process, each time on the same ports and files.
func Own(t testing.TB, name, given string, run func() (*Process, error)) *Owned {
	return &Owned{t: t, name: name, given: given, run: run}
}

// Start starts the server on a port that take notes, and on another one if it fails: somebody may have taken the port.
// The server ends with the test.
func (o *Owned) Start(take func(port int) error) {
	o.t.Helper()
	err := OnFreePort(func(port int) (err error) {
		if err = take(port); err == nil {
			o.process, err = o.run()
		}
		return err
	})
	if err != nil {
		o.t.Fatalf("testserver: %v", err)
	}
	o.t.Cleanup(func() { o.process.Kill() })
}

// Ours reports whether the test started the server itself.
func (o *Owned) Ours() bool { return o.process != nil }

// Process is the server's process. A test that asks for it is skipped where somebody else runs the server. A shared
// server has none to give: what a test did to it, others would feel.
func (o *Owned) Process() *Process {
	o.t.Helper()
	switch {
	case o.process != nil:
	case o.given != "" && os.Getenv(o.given) != "":
		Missing(o.t, "the test controls its server's process, which it cannot with the server that %s names", o.given)
	default:
		o.t.Fatalf("testserver: a shared %s is not a test's to stop: use Start", o.name)
	}
	return o.process
}

// Kill ends the server with SIGKILL and waits for its end.
func (o *Owned) Kill() {
	o.t.Helper()
	if err := o.Process().Kill(); err != nil {
		o.t.Fatalf("testserver: kill %s: %v", o.name, err)
	}
}

// Restart starts the server again after Kill, on the same ports and files, and waits until it answers. Somebody may use
// a port for a moment, and backends of a killed PostgreSQL keep another one from starting.
func (o *Owned) Restart() {
	o.t.Helper()
	o.Process()
	for begun := time.Now(); ; Pause() {
		p, err := o.run()
		if err == nil {
			o.process = p
			return
		}
		if time.Since(begun) > WaitLimit {
			o.t.Fatalf("testserver: restart: %v", err)
		}
	}
}
