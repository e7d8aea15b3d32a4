package kit

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Need skips a test where a program is not in PATH, and fails it where CI=true. The name initdb stands for those of
// PostgreSQL.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		_, err := exec.LookPath(program)
		if program == "initdb" {
			_, err = PostgresPrograms()
		}
		if err != nil && os.Getenv("CI") == "true" {
			t.Fatal(err)
		} else if err != nil {
			t.Skip(err)
		}
	}
}

// QuickRun runs a program quickly, and wants that it ends with these results, in this order.
func QuickRun(t *testing.T, experiments []Experiment, results ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := Run(t.Context(), []string{"-quick"}, &stdout, &stderr, experiments...); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	last := lines[max(0, len(lines)-len(results)):]
	for i, line := range last {
		if !strings.HasPrefix(line, results[i]+" ") {
			t.Errorf("line %d from the end is %q, want %q and a number", len(last)-i, line, results[i])
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", stdout.String(), stderr.String())
	}
}

// QuickRecords compares subjects quickly, and wants a result of each that can be had, which with CI=true are all.
func QuickRecords(t *testing.T, records Experiment, subjects ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := []string{"-quick", "-stores", strings.Join(subjects, ",")}
	if err := Run(t.Context(), args, &stdout, &stderr, records); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for _, name := range subjects {
		measured := strings.Contains(stdout.String(), "\nratio "+name+"_full_vs_empty_worst ")
		if leftOut := strings.Contains(stderr.String(), name+" is left out: "); measured == leftOut ||
			leftOut && os.Getenv("CI") == "true" {
			t.Errorf("%s: measured %t, left out %t", name, measured, leftOut)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", stdout.String(), stderr.String())
	}
}
