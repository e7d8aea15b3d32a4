package pgwal

import "github.com/jackc/pglogrepl"

// A memory keeps, from one connection to the next, what was acknowledged and will be shown again all the same.
type memory struct {
	acked map[origin]bool
	until pglogrepl.LSN // once everything before it is confirmed, nothing of it will be shown again
}

// memoryLimit bounds it: what is forgotten is published once more.
const memoryLimit = 100_000

func newMemory() *memory { return &memory{acked: map[origin]bool{}} }

func (m *memory) keep(o origin) {
	if len(m.acked) < memoryLimit {
		m.acked[o] = true
	}
}

// forget drops what is confirmed.
func (m *memory) forget(confirmed pglogrepl.LSN) {
	if len(m.acked) > 0 && confirmed >= m.until {
		clear(m.acked)
	}
}

// A late transaction is settled, but the server may not know, because an earlier one is not, or because a confirmation was
// lost: it would be shown again.
type late struct {
	end   pglogrepl.LSN
	acked []origin
}
