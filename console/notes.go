package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Notes remember which failures were archived, and which actions were begun. A failure comes back when it fails again.
// The zero Notes forget when the process ends; [OpenNotes] keeps them in a file. Notes are safe for concurrent use.
type Notes struct {
	mu    sync.Mutex
	file  notesFile // nil: none
	all   map[noted]*Note
	tasks []*taskNote // oldest first
}

type notesFile interface {
	io.WriteCloser
	Stat() (fs.FileInfo, error)
	Truncate(size int64) error
}

// A taskNote says how far an action is.
type taskNote struct {
	ID      string     `json:"id"`
	Form    url.Values `json:"form,omitempty"` // plans the same again; in the first note of an action only
	Action  Action     `json:"action"`
	In      string     `json:"in"`
	About   string     `json:"about,omitempty"`
	Things  string     `json:"things"`
	Total   int        `json:"total"`
	Who     string     `json:"who"`
	Why     string     `json:"why,omitempty"`
	Asked   time.Time  `json:"asked"`
	Began   time.Time  `json:"began,omitzero"`
	Ended   time.Time  `json:"ended,omitzero"`
	Changed int        `json:"changed"`
	Refused int        `json:"refused"`
	Problem string     `json:"problem,omitempty"` // why it ended before it had done all
	Time    time.Time  `json:"time"`              // when this was so
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
		var note struct {
			Note
			Task *taskNote `json:"task"`
		}
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
		switch {
		case note.Task != nil:
			n.keepTask(note.Task)
		case note.Expires.IsZero() || time.Now().Before(note.Expires):
			n.keep(note.Note)
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
	if err := n.write(note); err != nil {
		return err
	}
	n.keep(note)
	return nil
}

func (n *Notes) write(note any) error {
	if n.file == nil {
		return nil
	}
	line, err := json.Marshal(note)
	if err != nil {
		return fmt.Errorf("console: notes: %w", err)
	}
	if written, err := n.file.Write(append(line, '\n')); err != nil {
		if info, statErr := n.file.Stat(); statErr == nil { // a part of a line would spoil the next
			err = errors.Join(err, n.file.Truncate(info.Size()-int64(written)))
		}
		return fmt.Errorf("console: notes: %w", err)
	}
	return nil
}

// noteTask notes how far an action is.
func (n *Notes) noteTask(note *taskNote) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.write(struct {
		Task *taskNote `json:"task"`
	}{note})
}

// keepTask keeps the last notes of the last actions.
func (n *Notes) keepTask(note *taskNote) {
	at := slices.IndexFunc(n.tasks, func(t *taskNote) bool { return t.ID == note.ID })
	if at < 0 {
		n.tasks = remember(n.tasks, note, func(t *taskNote) bool { return !t.Ended.IsZero() })
		return
	}
	if note.Form == nil {
		note.Form = n.tasks[at].Form
	}
	n.tasks[at] = note
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

// archived are the keys of the failures of a store that are archived, each with its last fence.
func (n *Notes) archived(store string) map[string]uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]uint64{}
	for of := range n.all {
		if of.store == store {
			all[of.key] = max(all[of.key], of.fence)
		}
	}
	return all
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
