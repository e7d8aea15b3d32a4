package faults_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// An audit reads the journals of a directory while processes write them.
type audit struct {
	t       *testing.T
	dir     string
	read    map[string]int64            // how far, by file
	runs    map[string]map[uint64]entry // the latest entry of each, by message ID and fence
	effects int
}

func newAudit(t *testing.T) *audit {
	return &audit{t: t, dir: t.TempDir(), read: map[string]int64{}, runs: map[string]map[uint64]entry{}}
}

// refresh reads what was added. A line that is not whole is that of a process that was killed, or is not done.
func (a *audit) refresh() {
	a.t.Helper()
	names, err := filepath.Glob(filepath.Join(a.dir, "*.journal"))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, name := range names {
		added := a.tail(name)
		whole := bytes.LastIndexByte(added, '\n') + 1
		a.read[name] += int64(whole)
		for line := range bytes.Lines(added[:whole]) {
			var e entry
			if err := json.Unmarshal(line, &e); err != nil {
				a.t.Fatalf("%s: %v: %s", name, err, line)
			}
			if a.runs[e.ID] == nil {
				a.runs[e.ID] = map[uint64]entry{}
			}
			if effective(e) && !effective(a.runs[e.ID][e.Fence]) {
				a.effects++
			}
			a.runs[e.ID][e.Fence] = e
		}
	}
}

func (a *audit) tail(name string) []byte {
	a.t.Helper()
	f, err := os.Open(name)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(a.read[name], io.SeekStart); err != nil {
		a.t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		a.t.Fatal(err)
	}
	return b
}

// entries calls a function for each run.
func (a *audit) entries(f func(entry)) {
	for _, runs := range a.runs {
		for _, e := range runs {
			f(e)
		}
	}
}

// count reads on, and returns how many runs a function accepts.
func (a *audit) count(accept func(entry) bool) (n int) {
	a.t.Helper()
	a.refresh()
	a.entries(func(e entry) {
		if accept(e) {
			n++
		}
	})
	return n
}

// done reads on, and returns how many effects there were.
func (a *audit) done() int {
	a.t.Helper()
	a.refresh()
	return a.effects
}

func effective(e entry) bool { return !e.Effect.IsZero() }

// of are the runs of a message in order.
func (a *audit) of(id string) []entry {
	var all []entry
	for _, e := range a.runs[id] {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.Fence, b.Fence) })
	return all
}

// More explanations of an effect after the first of its message.
const (
	handlerFailed = "its handler failed after its effect"
	holderKilled  = "its process was killed after its effect"
)

// reason is explain for processes that are killed, and handlers that fail.
func reason(before, r entry, killed map[int]time.Time) string {
	first := run{Claim: dedupstore.Claim{Attempt: before.Attempt}, until: before.Until, end: before.End}
	second := run{Claim: dedupstore.Claim{Attempt: r.Attempt}, found: r.Found, granted: r.Granted}
	why := explain(&first, &second)
	switch {
	case why == lostRecord || r.Found == "":
		return why
	case before.Failed:
		return handlerFailed
	case before.End == "" && !killed[before.PID].IsZero() && why == lostLease:
		return holderKilled
	}
	return why
}

// balance closes the books of messages. The store says which of them it has an outcome of.
func (a *audit) balance(ids []string, deliveries int, deadLetters map[string]int, killed map[int]time.Time, finished func(id string) bool) books {
	a.t.Helper()
	a.refresh()
	b := books{messages: len(ids), deliveries: deliveries, extra: map[string]int{}, latest: map[string]string{}}
	for _, id := range ids {
		b.deadLetters += deadLetters[id]
		var before *entry
		for _, e := range a.of(id) {
			if !effective(e) {
				continue
			}
			b.effects++
			if before != nil {
				if why := reason(*before, e, killed); why != "" {
					b.extra[why]++
				} else {
					b.unexplained = append(b.unexplained, fmt.Sprintf("%+v after %+v", e, *before))
				}
			}
			before = &e
		}
		if before == nil && deadLetters[id] == 0 || !finished(id) {
			b.lost = append(b.lost, id)
		}
	}
	return b
}
