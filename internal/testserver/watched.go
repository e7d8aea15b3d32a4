package testserver

import (
	"os"
	"os/exec"
	"path/filepath"
)

// watch runs a command until its standard input ends, which is when the process that has the other end does. Then it
// kills the command and removes what it leaves. There is no goroutine of the test's that would wait: it would look like a
// leak to every test that looks for one.
const watch = `dir=$1; shift; "$@" </dev/null & read -r _; kill -9 $!; wait $!; ` + Remove

// Remove is a script that removes the folder $dir of a server that has ended, and the System V segment of a PostgreSQL
// that was killed. PostgreSQL would remove that segment only on its next start with the same files, and a system has
// just 4,096. Line 7 of postmaster.pid has its key and ID.
const Remove = `id=$(sed -n '7s/.* //p' "$dir/data/postmaster.pid" 2>/dev/null); [ -z "$id" ] || ipcrm -m "$id"; rm -rf "$dir"`

// StartWatched runs a command until the returned file is closed.
func StartWatched(dir string, command []string) (*os.File, error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	end, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	cmd := exec.Command("sh", append([]string{"-c", watch, "sh", dir}, command...)...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, end, log, log
	if err := cmd.Start(); err != nil {
		alive.Close()
		return nil, err
	}
	return alive, nil
}
