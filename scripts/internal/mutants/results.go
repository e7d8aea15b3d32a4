package main

import (
	"fmt"
	"os"
	"strings"
)

// results are what the tests said of mutants, in a file: a run that was stopped goes on there. The first line tells the
// code and the tests that they are of.
type results struct {
	file   *os.File
	before map[string]string
}

func openResults(path, sum string, again bool) (*results, error) {
	r := &results{before: map[string]string{}}
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	head, rest, _ := strings.Cut(string(text), "\n")
	kept := sum + "\n"
	for line := range strings.Lines(rest) {
		name, by, whole := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		lived := by == alive || by == uncovered
		if whole && strings.HasSuffix(line, "\n") && (head == sum && !again || again && !lived) {
			r.before[name] = by
			kept += line
		}
	}
	if err := os.WriteFile(path, []byte(kept), 0o600); err != nil {
		return nil, err
	}
	r.file, err = os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	return r, err
}

func (r *results) put(m *mutant, by string) {
	fmt.Fprintf(r.file, "%s\t%s\n", m.name(), strings.Join(strings.Fields(by), " "))
}

// readEqual reads the list of mutants that break no promise: for each a line "file: text of the line", a line with
// the mutation, and lines that say why. It returns these by key.
func readEqual(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	known := map[string]string{}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		if lines[0] == "" || strings.HasPrefix(lines[0], "#") {
			continue
		}
		if len(lines) < 3 {
			return nil, fmt.Errorf("%s: %q has no mutation or no reason", path, lines[0])
		}
		known[lines[0]+"\n\t"+strings.TrimSpace(lines[1])] = strings.Join(lines[2:], " ")
	}
	return known, nil
}

// stale returns what the list says of code that is not there any more.
func stale(t target, mutants []*mutant, known map[string]string) (wrong []string) {
	there := map[string]bool{}
	for _, m := range mutants {
		there[m.key()] = true
	}
	for key := range known {
		file, _, _ := strings.Cut(key, ": ")
		if t.has(file) && !there[key] {
			wrong = append(wrong, "equal.txt: no such mutant any more: "+key)
		}
	}
	return wrong
}
