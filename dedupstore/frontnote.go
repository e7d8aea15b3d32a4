package dedupstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A note is what the cheap store has to know of a success beside the outcome. It stands where a success has no text: in
// the outcome's reason.
type note struct {
	fence  uint64        // under which the inbox's record was decided
	older  time.Duration // how much older than the cheap store's record the inbox's is
	scheme string        // of the fingerprint that is known to be the inbox's, too
	trace  *string       // of the run; nil: the cheap store's own is right
}

const notePrefix = "front fence="

func (n note) String() string {
	s := fmt.Sprintf("%s%d older=%d scheme=%s", notePrefix, n.fence, n.older.Milliseconds(), n.scheme)
	if n.trace != nil {
		s += " trace=" + *n.trace
	}
	return s
}

// noteOf makes the note of a success that the inbox's answer told of.
func noteOf(r *Request, cheap, answer *Answer) note {
	return note{fence: answer.Fence, older: answer.Age - cheap.Age, scheme: r.Fingerprint.Scheme, trace: &answer.Trace}
}

func parseNote(s string) (n note, ok bool) {
	s, ok = strings.CutPrefix(s, notePrefix)
	fence, s, ok1 := strings.Cut(s, " older=")
	older, s, ok2 := strings.Cut(s, " scheme=")
	scheme, trace, traced := strings.Cut(s, " trace=")
	if !ok || !ok1 || !ok2 {
		return note{}, false
	}
	n.scheme = scheme
	if traced {
		n.trace = &trace
	}
	ms, err := strconv.ParseInt(older, 10, 64)
	if err != nil {
		return note{}, false
	}
	n.older = time.Duration(ms) * time.Millisecond
	n.fence, err = strconv.ParseUint(fence, 10, 64)
	return n, err == nil
}

// readNote completes the cheap store's answer about a success, and reports whether it counts. It does not if it is not known
// that the inbox would compare the content with the same one. A success without a note is from a guard that had the cheap
// store alone: it is as good as it was there. (See foreign.)
func readNote(a *Answer, r *Request) bool {
	if a.Outcome.Reason == "" {
		return true
	}
	n, ok := parseNote(a.Outcome.Reason)
	if !ok || !r.Fingerprint.IsZero() && r.Fingerprint.Scheme != n.scheme {
		return false
	}
	a.Outcome.Reason, a.Fence, a.Age = "", n.fence, max(0, a.Age+n.older)
	if n.trace != nil {
		a.Trace = *n.trace
	}
	return true
}
