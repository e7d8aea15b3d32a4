package testserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// watch runs a command until its standard input ends, which is when the process that has the other end does. Then it
// kills the command and removes what it leaves. There is no goroutine of the test's that would wait: it would look like a
// leak to every test that looks for one. The command, and nobody else, keeps file 3 open: it ends when the command does.
const watch = `dir=$1; shift; "$@" </dev/null & exec 3>&-; read -r _; kill -9 $!; wait $!; ` + Remove

// Remove is a script that removes the folder $dir of a server that has ended, and the System V segment of a PostgreSQL
// that was killed. PostgreSQL would remove that segment only on its next start with the same files, and a system has
// just 4,096. Line 7 of postmaster.pid has its key and ID.
const Remove = `id=$(sed -n '7s/.* //p' "$dir/data/postmaster.pid" 2>/dev/null); [ -z "$id" ] || ipcrm -m "$id"; rm -rf "$dir"`

// StartWatched runs a server until the returned file is closed, and waits for it as [StartServer] does.
func StartWatched(dir string, command []string, limit time.Duration, look func() error) (*os.File, error) {
	name := filepath.Join(dir, "log")
	log, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	running, theirs, err := os.Pipe()
	if err != nil {
		alive.Close()
		return nil, err
	}
	defer running.Close()
	cmd := exec.Command("sh", append([]string{"-c", watch, "sh", dir}, command...)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, end, log, log, []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		alive.Close()
		return nil, err
	}
	ended := func() bool {
		running.SetReadDeadline(time.Now().Add(time.Millisecond)) // a read after its deadline does not look
		_, err := running.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	if err := await(ended, limit, look); err != nil {
		alive.Close()
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, endOf(name))
	}
	return alive, nil
}

// A Shared is a server that the tests of this process share. It lives until the process ends.
type Shared struct {
	mu    sync.Mutex
	alive *os.File // what the watcher of the server reads; never closed, so that it ends with this process
	err   error
}

// Start starts the server for the first test that asks for it, with a function that calls [StartWatched].
func (s *Shared) Start(t testing.TB, start func() (*os.File, error)) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive == nil && s.err == nil {
		s.alive, s.err = start()
	}
	if s.err != nil {
		t.Fatalf("testserver: the shared server: %v", s.err)
	}
}
