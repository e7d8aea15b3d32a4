package redisstore

import (
	"bytes"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/oncemill/oncemill/dedupstore"
)

// maxCachedOutcome bounds what an outcome may take to be kept in a cache: the bytes of its result, and of the IDs,
// topics and keys of what it produced. Larger ones are read from Redis each time. So an entry takes some 10 KiB at most
// with all that belongs to it, and mostly a twentieth of that.
const maxCachedOutcome = 4 << 10

// A cache remembers in this process what claims were told of messages that have succeeded, the least recently asked
// ones forgotten first. It is safe for concurrent use. Nil is a cache that is off: nothing is kept, nothing found.
//
// It holds successes only. A record of a success does not change until its window ends: nothing reruns it, and asking
// does not prolong it. Failed and unknown outcomes may be run again on request, by any process, and an answer from here
// would be out of date without notice.
//
// It is filled by the replies of claims, never by what is about to be written: a reply tells all that an answer
// needs, while a settle knows neither the fingerprint of the record nor its trace and first claim. Messages that never
// come twice, nearly all, cost nothing and push nothing out.
//
// A record that is gone before its window has ended, by an operator or because Redis lost it, is still done here.
type cache struct {
	entries *lru.Cache[dedupstore.Key, entry]
}

type entry struct {
	answer         dedupstore.Answer
	fingerprint    dedupstore.Fingerprint
	sent           time.Time // the claim that was answered so
	deadline, wall time.Time // by the monotonic clock, and by the other
}

// newCache returns a cache of as many entries, nil if that is zero. Less than zero the config does not allow.
func newCache(entries int) *cache {
	if entries == 0 {
		return nil
	}
	l, err := lru.New[dedupstore.Key, entry](entries)
	if err != nil {
		panic(err)
	}
	return &cache{entries: l}
}

// put keeps an answer, if it is Done and of a success, with the fingerprint of its record. The claim was sent at the
// time given, which is taken before, and the record lived on for what was left when it was answered; zero is unknown.
func (c *cache) put(
	key dedupstore.Key, f dedupstore.Fingerprint, a dedupstore.Answer, sent time.Time, left time.Duration,
) {
	margin := clockMargin(left)
	if c == nil || a.Status != dedupstore.Done || a.Outcome.Kind != dedupstore.Succeeded || left <= margin ||
		outcomeSize(a.Outcome) > maxCachedOutcome {
		return
	}
	key.ID = strings.Clone(key.ID) // it may be a piece of a whole message
	a.Outcome = copyOf(a.Outcome)
	deadline := sent.Add(left - margin)
	c.entries.Add(key, entry{answer: a, fingerprint: f, sent: sent, deadline: deadline, wall: deadline.Round(0)})
}

// clockMargin is how much sooner than Redis a cache forgets what Redis keeps for d. The two count by clocks of their
// own. A clock that is kept by NTP runs at most 500 ppm fast or slow (the kernel corrects by no more: adjtimex(2), RFC
// 5905), so two of them part by a thousandth at most. Redis counts in milliseconds: one more for what was rounded.
func clockMargin(d time.Duration) time.Duration { return d/1000 + time.Millisecond }

// get answers a claim that is made now, if the answer is known: Done, or Mismatch. The caller may change it. A request
// to run again is for Redis to answer.
func (c *cache) get(r dedupstore.Request, now time.Time) (dedupstore.Answer, bool) {
	if c == nil || r.Rerun != 0 {
		return dedupstore.Answer{}, false
	}
	e, ok := c.entries.Get(r.Key)
	if !ok {
		return dedupstore.Answer{}, false
	}
	if e.over(now) {
		c.entries.Remove(r.Key)
		return dedupstore.Answer{}, false
	}
	a := dedupstore.Answer{
		Status: dedupstore.Done, Found: dedupstore.Finished, Trace: e.answer.Trace,
		Age: e.answer.Age + max(0, now.Sub(e.sent)), Aside: true,
	}
	if e.fingerprint.Differs(r.Fingerprint) {
		a.Status = dedupstore.Mismatch
		return a, true
	}
	a.Outcome, a.Fence = copyOf(e.answer.Outcome), e.answer.Fence
	return a, true
}

// over tells whether the window has ended by either clock: a machine that sleeps stops the monotonic one, and the
// other can be set back.
func (e entry) over(now time.Time) bool {
	return !now.Before(e.deadline) || !now.Round(0).Before(e.wall)
}

// forget removes what is known of a key, because Redis has been found to know otherwise.
func (c *cache) forget(key dedupstore.Key) {
	if c != nil {
		c.entries.Remove(key)
	}
}

// copyOf shares no bytes with the outcome, of which it has what is kept when it is done.
func copyOf(o dedupstore.Outcome) dedupstore.Outcome {
	o.Result, o.Produced = bytes.Clone(o.Result), dedupstore.Stubs(o.Produced)
	return o
}

func outcomeSize(o dedupstore.Outcome) int {
	n := len(o.Reason) + len(o.Result)
	for _, p := range o.Produced {
		n += len(p.ID) + len(p.Topic) + len(p.Key)
	}
	return n
}
