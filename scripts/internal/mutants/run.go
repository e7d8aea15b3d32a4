package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A program is a compiled test binary.
type program struct {
	path, dir string
	args      []string
	starts    time.Duration // what it takes without a test
	tests     []*test
}

// A test is one that passes without a mutant.
type test struct {
	name    string
	took    time.Duration
	reaches map[int]bool // nil: not known
}

// build compiles the tests of a package with the changed files, and returns what tells the binary from others.
func build(root, work string, changed map[string]string, s suite) (*program, string, error) {
	replaced := map[string]string{}
	for path, text := range changed {
		replaced[path] = filepath.Join(work, filepath.Base(path)+".txt") // not .go: it would be a package of its own
		if err := os.WriteFile(replaced[path], []byte(text), 0o600); err != nil {
			return nil, "", err
		}
	}
	overlay := filepath.Join(work, "overlay.json")
	binary := filepath.Join(work, strings.ReplaceAll(s.dir, "/", "_")+".test")
	text, _ := json.Marshal(map[string]any{"Replace": replaced})
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return nil, "", err
	}
	compile := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", binary, "./"+s.dir)
	compile.Dir = root
	if out, err := compile.CombinedOutput(); err != nil {
		return nil, "", fmt.Errorf("%s: %w\n%s", s.dir, err, out)
	}
	content, err := os.ReadFile(binary)
	sum := sha256.Sum256(content)
	return &program{path: binary, dir: filepath.Join(root, s.dir), args: s.args}, hex.EncodeToString(sum[:]), err
}

// trace runs each test alone, and notes which mutants it reaches, if that can be traced. Tests that fail are left out:
// some count the allocations of code that has no mutants in it.
func (p *program) trace(work string, s suite, traced bool) error {
	list, err := exec.Command(p.path, "-test.list", ".").Output()
	if err != nil {
		return fmt.Errorf("%s -test.list: %w", p.path, err)
	}
	file, only, skip := filepath.Join(work, "trace"), regexp.MustCompile(s.only), regexp.MustCompile(cmp.Or(s.skip, "^$"))
	for name := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(name, "Benchmark") || !only.MatchString(name) || skip.MatchString(name) {
			continue
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		began := time.Now()
		if out, ok := p.run([]string{name}, 2*time.Minute, "ONCEMILL_MUTANT_TRACE="+file); !ok {
			fmt.Printf("  left out, because it fails with all mutants off: %s: %s\n", name, firstFailure(out))
			continue
		}
		t := &test{name: name, took: time.Since(began)}
		p.tests = append(p.tests, t)
		if !traced {
			continue
		}
		t.reaches = map[int]bool{}
		reached, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for field := range strings.FieldsSeq(string(reached)) {
			id, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("the trace of %s: %w", name, err)
			}
			t.reaches[id] = true
		}
	}
	slices.SortFunc(p.tests, func(a, b *test) int { return cmp.Compare(a.took, b.took) })
	if len(p.tests) == 0 {
		return fmt.Errorf("%s: no test passes", p.dir)
	}
	p.starts = p.tests[0].took
	return nil
}

// kill runs the tests that reach a mutant, the quick ones first. It returns what killed it.
func (p *program) kill(m *mutant) (by string, reached bool) {
	var names []string
	var sum, all time.Duration // of what the tests take, without and with their start
	enough := 300 * time.Millisecond
	for i, t := range p.tests {
		if t.reaches == nil || t.reaches[m.id] {
			names, sum, all = append(names, t.name), sum+t.took-p.starts, all+t.took
		}
		if len(names) == 0 || sum < enough && i < len(p.tests)-1 {
			continue
		}
		reached = true
		if out, ok := p.run(names, 10*time.Second+5*all, m.env...); !ok {
			return firstFailure(out), true
		}
		names, all, enough = nil, 0, 5*sum
	}
	return "", reached
}

// run reports whether the tests pass in time. It ends the processes that they started, too.
func (p *program) run(names []string, limit time.Duration, env ...string) (out string, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := []string{"-test.run", "^(" + strings.Join(names, "|") + ")$", "-test.failfast", "-test.timeout", "0"}
	cmd := exec.CommandContext(ctx, p.path, append(args, p.args...)...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Sprintf("--- FAIL: no end after %v\n", limit.Round(time.Second)), false
	}
	return string(b), err == nil
}

var failure = regexp.MustCompile(`(?m)^(\s*--- FAIL: .*|panic: .*|fatal error: .*)$`)

func firstFailure(out string) string {
	if found := failure.FindString(out); found != "" {
		return strings.TrimSpace(found)
	}
	return "failed: " + strings.TrimSpace(out[max(0, len(out)-200):])
}
