package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Notes remember which failures were archived. A failure comes back when it fails again. The zero Notes forget when the
// process ends; [OpenNotes] keeps them in a file. Notes are safe for concurrent use.
type Notes struct {
	mu   sync.Mutex
	file *os.File
	all  map[noted]*Note
}

// A Note says who archived a failure, and why.
type Note struct {
	Store   string    `json:"store"`
	Key     string    `json:"key"`
	Fence   uint64    `json:"fence"`
	Who     string    `json:"who"`
	Why     string    `json:"why"`
	Time    time.Time `json:"time"`
	Expires time.Time `json:"expires,omitzero"` // when the record does

	Restored bool `json:"restored,omitempty"` // the failure is archived no more
}

type noted struct {
	store, key string
	fence      uint64
}

// OpenNotes reads notes from a file, which it makes if there is none, and appends new ones to it. Notes whose records
// have expired are left out. One process at a time may write the file.
func OpenNotes(path string) (*Notes, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("console: notes: %w", err)
	}
	n := &Notes{file: f}
	for lines := json.NewDecoder(f); ; {
		var note Note
		err := lines.Decode(&note)
		if errors.Is(err, io.ErrUnexpectedEOF) { // a crash cut the last note off
			err = cmp.Or(f.Truncate(lines.InputOffset()), io.EOF)
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			f.Close()
			return nil, fmt.Errorf("console: notes: %s: %w", path, err)
		}
		if note.Expires.IsZero() || time.Now().Before(note.Expires) {
			n.keep(note)
		}
	}
}

// Close closes the file.
func (n *Notes) Close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

func (n *Notes) keep(note Note) {
	if n.all == nil {
		n.all = map[noted]*Note{}
	}
	of := noted{note.Store, note.Key, note.Fence}
	if n.all[of] = &note; note.Restored {
		delete(n.all, of)
	}
}

func (n *Notes) add(note Note) error { return n.note(false, note) }

// note archives a failure, or restores it.
func (n *Notes) note(restored bool, note Note) error {
	note.Restored = restored
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file != nil {
		line, err := json.Marshal(note)
		if err == nil {
			_, err = n.file.Write(append(line, '\n'))
		}
		if err != nil {
			return fmt.Errorf("console: notes: %w", err)
		}
	}
	n.keep(note)
	return nil
}

// of returns the note on a failure; nil if there is none.
func (n *Notes) of(store string, r *dedupstore.Record) *Note {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) == 0 {
		return nil
	}
	return n.all[noted{store, r.Key.String(), r.Fence}]
}

// keys are those of the failures of a store that are archived.
func (n *Notes) keys(store string) (keys []dedupstore.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for of := range n.all {
		if key, err := dedupstore.ParseKey(of.key); err == nil && of.store == store {
			keys = append(keys, key)
		}
	}
	return keys
}
