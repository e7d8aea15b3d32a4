package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Keep returns a ledger for a process that may be killed at any moment. Whenever something happens to a run, the ledger
// appends the run to a file, in its new state. Dead letters have lines of their own. A killed process did only what it
// wrote: the effect is the line itself.
func Keep(t testing.TB, store dedupstore.Store, name string) *Ledger {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l := New(store)
	l.journal = f
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if err := errors.Join(l.wrong, f.Close()); err != nil {
			t.Errorf("journal: %v", err)
		}
	})
	return l
}

// Forget forgets messages that nobody has claimed since a time, and whose leases ended before it: what is in a journal
// need not stay in memory.
func (l *Ledger) Forget(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.accounts, func(_ string, a *account) bool {
		for _, asked := range a.asked {
			if !asked.Before(before) {
				return false
			}
		}
		return !slices.ContainsFunc(a.runs, func(r *Run) bool { return !r.Until.Before(before) })
	})
}

// An entry is a line of a journal: a run so far, or dead letters of a message.
type entry struct {
	*Run
	DeadLetters int `json:",omitzero"`
}

// write appends a line to the journal, if there is one. The ledger is locked.
func (l *Ledger) write(e entry) {
	if l.journal == nil {
		return
	}
	e.PID = os.Getpid()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.journal.Write(append(line, '\n'))
	}
	l.wrong = cmp.Or(l.wrong, err)
}

// Read reads what was added to the journals of a folder, while processes write them.
func (l *Ledger) Read(dir string) error {
	return l.tail(dir, "*.journal", func(line []byte) error {
		e := entry{Run: new(Run)}
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		r, a := e.Run, l.of(e.ID)
		if e.DeadLetters > 0 {
			a.DeadLetters += e.DeadLetters
			return nil
		}
		l.sum.Effects += r.effects()
		if known := a.run(r.Fence); known != nil {
			l.sum.Effects -= known.effects()
			*known = *r
			return nil
		}
		l.add(a, r)
		a.sort()
		return nil
	})
}

// sort puts runs in their order, which is that of their fences. But after the loss of a record, or after it was
// forgotten, redisstore may give the next run one that is up to 60 ms older.
func (a *account) sort() {
	const younger = 60_000 // in µs, as fences of redisstore
	slices.SortFunc(a.runs, func(a, b *Run) int { return cmp.Compare(a.Fence, b.Fence) })
	for i := len(a.runs) - 1; i > 0; i-- {
		r, next := a.runs[i-1], a.runs[i]
		if r.Found == dedupstore.Absent && next.Granted.Before(r.Granted) && next.Fence-r.Fence <= younger {
			a.runs[i-1], a.runs[i] = next, r
		}
	}
}

// tail calls a function for each line that was added to files, with the ledger locked. It leaves a line that is not
// whole: its process was killed, or is not done.
func (l *Ledger) tail(dir, pattern string, read func(line []byte) error) error {
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		added, err := addedTo(name, l.read[name])
		if err != nil {
			return err
		}
		whole := bytes.LastIndexByte(added, '\n') + 1
		l.read[name] += int64(whole)
		for line := range bytes.Lines(added[:whole]) {
			if err := read(line); err != nil {
				return fmt.Errorf("%s: %w: %s", name, err, line)
			}
		}
	}
	return nil
}

func addedTo(name string, from int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}
