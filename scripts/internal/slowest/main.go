// Command slowest runs tests, and says what each package and its slowest tests took. A package whose processors' time is
// far below its time waits.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// module is what the packages of the repository's folder begin with, whatever module they belong to.
const module = "github.com/oncemill/oncemill"

// usedFile is where the processes of tests leave what they used: this program stands before each of them.
const usedFile = "ONCEMILL_SLOWEST_USED"

// shown is how many tests of a package are listed.
const shown = 10

func main() {
	run := report
	if file := os.Getenv(usedFile); file != "" {
		run = func(args []string) error { return watch(file, args) }
	}
	err := run(os.Args[1:])
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		os.Exit(max(1, failed.ExitCode()))
	case err != nil:
		fmt.Fprintln(os.Stderr, "slowest:", err)
		os.Exit(1)
	}
}

// A used says what the process of a package's tests used, with those that it started and waited for.
type used struct {
	Dir             string
	Took, Processor time.Duration
}

// watch runs a process of tests.
func watch(file string, args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	c := exec.Command(args[0], args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	begun := time.Now()
	failed := c.Run()
	if c.ProcessState == nil {
		return failed
	}
	line, err := json.Marshal(used{dir, time.Since(begun), c.ProcessState.UserTime() + c.ProcessState.SystemTime()})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(failed, err, f.Close())
}

// An event is a line of go test -json.
type event struct {
	Action, Package, Test string
	Elapsed               float64 // seconds
}

func report(args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "oncemill-slowest-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // a temporary file
	defer f.Close()
	c := exec.Command("go", append([]string{"test", "-json", "-count=1", "-exec", self}, args...)...)
	c.Env = append(os.Environ(), usedFile+"="+f.Name())
	c.Stderr = os.Stderr
	events, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	tests := map[string][]event{}
	if err := read(events, tests); err != nil {
		return err
	}
	failed := c.Wait()
	root, err := os.Getwd()
	return errors.Join(failed, err, write(os.Stdout, root, f, tests))
}

// read collects tests by package, and says what fails at once.
func read(events io.Reader, tests map[string][]event) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // a compiler's words
		}
		ended := e.Action == "pass" || e.Action == "fail"
		switch {
		case ended && e.Test == "":
			fmt.Fprintf(os.Stderr, "%s: %s after %.0f s\n", e.Package, e.Action, e.Elapsed)
		case ended && !strings.Contains(e.Test, "/"):
			tests[e.Package] = append(tests[e.Package], e)
		}
		if e.Action == "fail" && e.Test != "" {
			fmt.Fprintf(os.Stderr, "%s fails\n", e.Test)
		}
	}
	return lines.Err()
}

// write makes the table: packages by the processors' time, which another load hardly changes.
func write(w io.Writer, root string, all io.Reader, tests map[string][]event) error {
	var packages []used
	var sum used
	for lines := json.NewDecoder(all); ; {
		var u used
		if err := lines.Decode(&u); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		packages = append(packages, u)
		sum.Took += u.Took
		sum.Processor += u.Processor
	}
	slices.SortFunc(packages, func(a, b used) int { return cmp.Compare(b.Processor, a.Processor) })
	_, err := fmt.Fprintf(w, "%8s %9s\n%7.0fs %8.0fs all\n", "time", "processor", sum.Took.Seconds(),
		sum.Processor.Seconds())
	for _, p := range packages {
		_, one := fmt.Fprintf(w, "\n%7.1fs %8.1fs %s\n", p.Took.Seconds(), p.Processor.Seconds(), p.Dir)
		err = errors.Join(err, one)
		of := tests[path.Join(module, strings.TrimPrefix(p.Dir, root))]
		slices.SortFunc(of, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
		for _, e := range of[:min(shown, len(of))] {
			_, one := fmt.Fprintf(w, "%7.1fs %9s   %s\n", e.Elapsed, "", e.Test)
			err = errors.Join(err, one)
		}
	}
	return err
}
