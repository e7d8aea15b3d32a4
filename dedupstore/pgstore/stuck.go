package pgstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// How long a key that is stuck is left alone: twice as long after each further look.
const (
	minStuck = 100 * time.Millisecond
	maxStuck = 2 * time.Second

	// forgetStuck is for how long after the last look something is remembered, and mostStuck bounds it.
	forgetStuck = time.Minute
	mostStuck   = 1 << 12

	// longStuck is after what time somebody is told, at most once in sayStuck. A key that nobody has looked at for
	// looksApart may have been free meanwhile.
	longStuck  = 5 * time.Second
	sayStuck   = time.Minute
	looksApart = 30 * time.Second
)

// stuck are keys whose new record somebody has had locked for longer than a commit takes, such as a client that the
// server hears no more of, with all keys of its batch. Their claims would hold up those of others, again and again:
// they are answered without a statement, but for one that looks now and then, alone.
type stuck struct {
	last atomic.Int64 // when one was found, in Unix nanoseconds; 0: there are none
	mu   sync.Mutex
	keys map[dedupstore.Key]*look
	said time.Time // when the log said so last
}

// A look is the next one at a key that is stuck.
type look struct {
	due   time.Time
	pause time.Duration
	since time.Time // when the key was found stuck
	last  time.Time // when it was found so again
}

// some reports whether there may be keys that are stuck.
func (s *stuck) some() bool {
	last := s.last.Load()
	return last != 0 && time.Now().UnixNano()-last < int64(forgetStuck)
}

// has reports whether a key is known to be stuck.
func (s *stuck) has(key dedupstore.Key) bool {
	if !s.some() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[key] != nil
}

// leave reports whether a claim is to be answered without a statement. A claim that goes alone may look when it is
// time.
func (s *stuck) leave(key dedupstore.Key, alone bool) bool {
	if !s.some() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next, now := s.keys[key], time.Now()
	if next == nil {
		return false
	}
	if !alone || now.Before(next.due) {
		return true
	}
	next.due = now.Add(next.pause) // one looks at a time
	return false
}

// found notes that a key is stuck, or still is. It returns for how long, if that is so long that somebody has to be
// told.
func (s *stuck) found(key dedupstore.Key) (long time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil || len(s.keys) >= mostStuck || !s.some() {
		s.keys = make(map[dedupstore.Key]*look)
	}
	next := s.keys[key]
	if next == nil {
		next = &look{}
		s.keys[key] = next
	}
	next.pause = min(max(2*next.pause, minStuck), maxStuck)
	now := time.Now()
	next.due = now.Add(next.pause)
	s.last.Store(now.UnixNano())
	if now.Sub(next.last) >= looksApart {
		next.since = now
	}
	next.last = now
	if stuck := now.Sub(next.since); stuck >= longStuck && now.Sub(s.said) >= sayStuck {
		s.said = now
		return stuck
	}
	return 0
}

// free notes that a key is not stuck any more.
func (s *stuck) free(key dedupstore.Key) {
	if !s.some() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
	if len(s.keys) == 0 {
		s.last.Store(0)
	}
}
