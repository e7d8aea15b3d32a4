package pgstore

import (
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	// lookAgain is how long a key that is stuck is left alone.
	lookAgain = time.Second

	// forgetStuck is for how long after the last look a key is remembered, and mostStuck how many keys are.
	forgetStuck = time.Minute
	mostStuck   = 1 << 12

	// longStuck is after what time somebody is told, at most once in sayStuck.
	longStuck = 5 * time.Second
	sayStuck  = time.Minute
)

// stuck are keys whose new record somebody has had locked for longer than a commit takes, such as a client that the
// server hears no more of, with all keys of its batch. Their claims would hold up those of others, again and again:
// they are answered without a statement, but for one that looks now and then, alone.
type stuck struct {
	mu   sync.Mutex
	keys map[dedupstore.Key]*look
	last time.Time // when a key was found stuck
	said time.Time // when the log said so
}

// A look is what is known of a key that is stuck.
type look struct {
	since time.Time // when it was found stuck
	due   time.Time // when to look again
}

// some reports whether there may be keys that are stuck.
func (s *stuck) some() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.current()) > 0
}

// current are the keys that are not to be forgotten. The mutex is held.
func (s *stuck) current() map[dedupstore.Key]*look {
	if time.Since(s.last) > forgetStuck {
		clear(s.keys)
	}
	return s.keys
}

// has reports whether a key is known to be stuck.
func (s *stuck) has(key dedupstore.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current()[key] != nil
}

// leave reports whether to answer a claim without a statement. A claim that goes alone may look when it is time.
func (s *stuck) leave(key dedupstore.Key, alone bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.current()[key]
	if l == nil {
		return false
	}
	if now := time.Now(); alone && now.After(l.due) {
		l.due = now.Add(lookAgain) // one looks at a time
		return false
	}
	return true
}

// found notes that a key is stuck, or still is. It returns for how long if somebody has to be told.
func (s *stuck) found(key dedupstore.Key) (long time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, now := s.current()[key], time.Now()
	if l == nil || now.Sub(l.due) > forgetStuck { // it may have been free meanwhile
		if s.keys == nil || len(s.keys) >= mostStuck {
			s.keys = make(map[dedupstore.Key]*look)
		}
		l = &look{since: now}
		s.keys[key] = l
	}
	l.due, s.last = now.Add(lookAgain), now
	if long = now.Sub(l.since); long < longStuck || now.Sub(s.said) < sayStuck {
		return 0
	}
	s.said = now
	return long
}

// free notes that a key is not stuck any more.
func (s *stuck) free(key dedupstore.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
}
