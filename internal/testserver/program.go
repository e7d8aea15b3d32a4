package testserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// StartProgram runs a program with its output in the file "log" of dir, which later runs in the same directory add to.
// On Linux it dies with this process. The caller ends it.
func StartProgram(dir, program string, args ...string) (*Process, error) {
	return startProcess(dir, program, args...)
}

// ExitCode is the exit status of a process that has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// BuildProgram builds a main package with the go command, as this module pins it, and returns the program's path.
func BuildProgram(t testing.TB, pkg string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(strings.TrimSuffix(pkg, "/v2")))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("testserver: build %s: %v\n%s", pkg, err, out)
	}
	return program
}
