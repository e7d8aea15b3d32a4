package testserver

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

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

// WaitLimit bounds every wait for a server: far more than one takes, also on a machine that is busy.
const WaitLimit = 2 * time.Minute

// Pause is what a loop that waits for a server does between two looks.
func Pause() { <-time.After(5 * time.Millisecond) }

// ProgramVersion asks a program that prints its version like redis-server: with a word "v=7.0.15".
func ProgramVersion(t testing.TB, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil {
		t.Fatalf("testserver: %s --version: %v", program, err)
	}
	words := strings.Fields(string(out))
	for _, word := range words {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return v
		}
	}
	if len(words) > 1 && words[0] == "PgBouncer" {
		return words[1]
	}
	return "of unknown version"
}

// Until repeats a step until it works or the context ends.
func Until(ctx context.Context, step func() error) error {
	for {
		err := step()
		if err == nil || ctx.Err() != nil {
			return err
		}
		Pause()
	}
}

// Loopback is the address of a port of the loopback interface.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
