package ledger

import "maps"

// A Tally counts what happened, by its kind and a value: deliveries by how they were answered, runs by their error, and
// so on. The rig chooses the kinds.
type Tally map[string]map[string]int

// Add counts what happened n times.
func (t Tally) Add(kind, value string, n int) {
	if t[kind] == nil {
		t[kind] = map[string]int{}
	}
	t[kind][value] += n
}

// AddAll counts what another tally has.
func (t Tally) AddAll(other Tally) {
	for kind, values := range other {
		for value, n := range values {
			t.Add(kind, value, n)
		}
	}
}

// Note counts something that happened once.
func (l *Ledger) Note(kind, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tally.Add(kind, value, 1)
}

// Tally returns what was noted.
func (l *Ledger) Tally() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := Tally{}
	for kind, values := range l.tally {
		all[kind] = maps.Clone(values)
	}
	return all
}
