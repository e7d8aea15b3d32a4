package pgwal

import (
	"fmt"
	"strconv"
	"strings"
)

// A snapshot says which transactions a statement does not see. The log shows a commit as soon as it is on disk, which can be
// long before others see it: with synchronous replication, only after the standby has it. So a row that is not there may
// be one that nobody has seen yet.
type snapshot struct {
	next    uint32 // this transaction and all later ones
	running map[uint32]bool
}

// parseSnapshot reads what pg_current_snapshot returns: "xmin:xmax:xip,xip,…", numbers of 64 bits of which the log has the
// lower half.
func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return snapshot{}, fmt.Errorf("pgwal: unreadable snapshot %q", text)
	}
	next, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return snapshot{}, fmt.Errorf("pgwal: unreadable snapshot %q: %w", text, err)
	}
	s = snapshot{next: uint32(next), running: map[uint32]bool{}}
	for xid := range strings.SplitSeq(parts[2], ",") {
		if xid == "" {
			continue
		}
		n, err := strconv.ParseUint(xid, 10, 64)
		if err != nil {
			return snapshot{}, fmt.Errorf("pgwal: unreadable snapshot %q: %w", text, err)
		}
		s.running[uint32(n)] = true
	}
	return s, nil
}

// sees says whether the end of a transaction is seen. Numbers are compared in a circle.
func (s snapshot) sees(xid uint32) bool {
	return xid == 0 || int32(xid-s.next) < 0 && !s.running[xid]
}
