package start_test

import (
	"bytes"
	"context"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"
)

const root = "../.."

// A block is a fenced block of a page.
type block struct {
	kind string // such as go, diff, sh; empty: what the block before it prints
	file string // the file that the text before it names last, or the one of the block before
	text string
}

var (
	fenced = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```\n")
	goFile = regexp.MustCompile("`(\\w+\\.go)`")
)

// blocks returns the blocks of a page, in their order.
func blocks(t *testing.T, page string) (found []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	end, file := 0, "main.go"
	for _, at := range fenced.FindAllSubmatchIndex(text, -1) {
		if named := goFile.FindAllSubmatch(text[end:at[0]], -1); named != nil {
			file = string(named[len(named)-1][1])
		}
		found = append(found, block{string(text[at[2]:at[3]]), file, string(text[at[4]:at[5]])})
		end = at[1]
	}
	return found
}

// A folder is where a reader pastes what a page shows. The checkout is beside it.
type folder struct {
	t   *testing.T
	dir string
	env []string // of what runs there

	ended <-chan struct{} // what runs there now needs a program, which has ended when this is closed; nil: nothing
}

func newFolder(t *testing.T, name string) folder {
	t.Helper()
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	above := t.TempDir()
	dir := filepath.Join(above, name)
	if err := os.Symlink(checkout, filepath.Join(above, "oncemill")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder{t: t, dir: dir, env: []string{"GOFLAGS=-ldflags=-w"}} // links faster
}

// paste writes or changes a file. The result must be formatted.
func (f folder) paste(b block) {
	f.t.Helper()
	path, code := filepath.Join(f.dir, b.file), b.text
	if b.kind == "diff" {
		before, err := os.ReadFile(path)
		if err != nil {
			f.t.Fatal(err)
		}
		removed, added := sides(b.text)
		if n := strings.Count(string(before), removed); n != 1 {
			f.t.Fatalf("%s has these lines %d times:\n%s", b.file, n, removed)
		}
		code = strings.Replace(string(before), removed, added, 1)
	}
	if formatted, err := format.Source([]byte(code)); err != nil || string(formatted) != code {
		f.t.Errorf("%s is not formatted (%v) after\n%s", b.file, err, b.text)
	}
	if err := os.WriteFile(path, []byte(code), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// sides returns what a diff replaces, and by what.
func sides(diff string) (removed, added string) {
	for line := range strings.Lines(diff) {
		if line[0] != '+' {
			removed += line[1:]
		}
		if line[0] != '-' {
			added += line[1:]
		}
	}
	return removed, added
}

// shLimit bounds what lines of a page may take. They build programs: a machine whose cache is cold, and that has much else
// to do, takes minutes.
const shLimit = 8 * time.Minute

// sh runs lines of a page, and returns what they print.
func (f folder) sh(lines string) (printed string) {
	f.t.Helper()
	bash := testserver.NeedProgram(f.t, "bash", "Debian: apt-get install bash")
	ctx, cancel := context.WithTimeout(f.t.Context(), shLimit)
	defer cancel()
	go func() {
		select {
		case <-f.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	cmd := exec.CommandContext(ctx, bash, "-euo", "pipefail", "-c", lines)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it is killed together with what it has started
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = f.dir, append(os.Environ(), f.env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%s%v\n%s%s", lines, err, out, &stderr)
	}
	return string(out)
}

// shows compares what lines have printed with the page.
func (f folder) shows(lines, printed, want string) {
	f.t.Helper()
	if printed != want {
		f.t.Errorf("%sprints\n%s\nthe page shows\n%s", lines, printed, want)
	}
}
