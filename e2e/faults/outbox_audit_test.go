package faults_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// An attempt is one time that a relay sent a message.
type attempt struct {
	relay    int
	leased   time.Time // when the relay began to lease the message
	sent     time.Time
	answered time.Time // zero: the relay did not get to note it
	answer   string    // "": acknowledged
	settled  time.Time // when the store had confirmed that it is published; zero: the relay did not get to note it
}

// Answers that are no acknowledgement.
const (
	answerRefused = "the broker refused it"
	answerUnknown = "its acknowledgement was lost"
)

// More explanations of a copy.
const (
	relayKilled  = "its relay was killed"
	leaseStopped = "its relay was stopped for longer than its lease"
	leaseSlow    = "its relay was slower than its lease"
	leaseCrashed = "the database crashed during its lease"
)

// A relayAudit knows what was done to relays, and reads what they did.
type relayAudit struct {
	dir     string
	lease   time.Duration
	killed  map[int]time.Time // by relay
	stopped map[int][]outage  // by relay: from SIGSTOP to SIGCONT
	crashes []outage          // of the database, which may forget a lease: from its kill until all backends have ended
}

// explain says why a message was sent again, after an attempt before; "" if nothing explains it. Unless the database forgot
// the lease of the attempt before, or its answer was not good, that lease must have ended, or the other one.
func (a relayAudit) explain(before, again attempt) string {
	switch {
	case before.answer != "":
		return before.answer
	case a.crashed(before, again):
		return leaseCrashed
	case again.sent.Sub(again.leased) > a.lease:
		return a.late(again.relay, again.leased, again.sent)
	case !before.settled.IsZero() && before.settled.Sub(before.leased) > a.lease:
		return a.late(before.relay, before.leased, before.settled)
	case before.settled.IsZero() && again.sent.Sub(before.leased) > a.lease:
		if at := a.killed[before.relay]; at.After(before.sent) && at.Before(again.sent) {
			return relayKilled
		}
		return a.late(before.relay, before.leased, again.sent)
	}
	return ""
}

// crashed says whether the database crashed after the lease of an attempt began, and before that was settled.
func (a relayAudit) crashed(before, again attempt) bool {
	end := again.sent
	if !before.settled.IsZero() && before.settled.Before(end) {
		end = before.settled
	}
	return slices.ContainsFunc(a.crashes, func(c outage) bool { return c.from.Before(end) && before.leased.Before(c.to) })
}

// late says why a lease ended before it was settled.
func (a relayAudit) late(relay int, from, to time.Time) string {
	for _, stop := range a.stopped[relay] {
		if stop.from.Before(to) && from.Before(stop.to) {
			return leaseStopped
		}
	}
	return leaseSlow
}

// attempts reads the logs of all relays. A last line that is not whole is that of a relay that was killed.
func (a relayAudit) attempts(t *testing.T) map[string][]attempt {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(a.dir, "*.relay"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]attempt{}
	for _, name := range names {
		r := reader{attempts: map[string][]attempt{}, leased: map[string]map[string]time.Time{}}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(f)
		for {
			text, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var line relayLine
			if err := json.Unmarshal(text, &line); err != nil {
				t.Fatalf("%s: %v: %s", name, err, text)
			}
			r.read(line)
		}
		f.Close()
		for id, of := range r.attempts {
			all[id] = append(all[id], of...)
		}
	}
	for _, of := range all {
		slices.SortStableFunc(of, func(a, b attempt) int { return a.sent.Compare(b.sent) })
	}
	return all
}

// A reader reads the log of one relay.
type reader struct {
	attempts map[string][]attempt
	calls    []map[string]int                // by call: which attempt of a message it is
	leased   map[string]map[string]time.Time // since when messages are held, by ID and token
}

func (r *reader) read(line relayLine) {
	switch line.What {
	case lineLeased:
		for _, id := range line.IDs {
			if r.leased[id] == nil {
				r.leased[id] = map[string]time.Time{}
			}
			r.leased[id][line.Token] = line.At
		}
	case lineSent:
		r.sent(line)
	case lineAnswered:
		r.answered(line)
	case lineSettled:
		r.settled(line)
	}
}

func (r *reader) sent(line relayLine) {
	for len(r.calls) <= line.Call {
		r.calls = append(r.calls, map[string]int{})
	}
	for _, id := range line.IDs {
		r.calls[line.Call][id] = len(r.attempts[id])
		since := slices.SortedFunc(maps.Values(r.leased[id]), time.Time.Compare)
		r.attempts[id] = append(r.attempts[id], attempt{relay: line.Relay, leased: since[0], sent: line.At})
	}
}

func (r *reader) answered(line relayLine) {
	for _, id := range line.IDs {
		a := &r.attempts[id][r.calls[line.Call][id]]
		a.answered = line.At
		switch {
		case slices.Contains(line.Refused, id):
			a.answer = answerRefused
		case slices.Contains(line.Unknown, id):
			a.answer = answerUnknown
		}
	}
}

func (r *reader) settled(line relayLine) {
	for _, id := range line.IDs {
		of := r.attempts[id]
		for i := range of {
			if of[i].settled.IsZero() && !of[i].answered.IsZero() && of[i].answer == "" {
				of[i].settled = line.At
			}
		}
	}
	for id := range r.leased {
		delete(r.leased[id], line.Token)
	}
}

// relayBooks are what an audit comes to.
type relayBooks struct {
	written, rolledBack int // messages whose transactions were committed, and were not
	attempts, stored    int
	lost                []string
	phantom             []string       // in the stream, although nobody committed them
	unsent              []string       // in the stream more often than it was sent
	extra               map[string]int // attempts after the first of their message, by explanation
	unexplained         []string
	disorder            []string
}

// balance closes the books: messages that were committed, those that were not, and the IDs in the stream.
func (a relayAudit) balance(attempts map[string][]attempt, committed, rolledBack map[string]bool, stream []string) relayBooks {
	b := relayBooks{written: len(committed), rolledBack: len(rolledBack), stored: len(stream), extra: map[string]int{}}
	copies := map[string]int{}
	for _, id := range stream {
		copies[id]++
	}
	for id, n := range copies {
		if !committed[id] {
			b.phantom = append(b.phantom, id)
		}
		if n > len(attempts[id]) {
			b.unsent = append(b.unsent, fmt.Sprintf("%s: %d copies, sent %d times", id, n, len(attempts[id])))
		}
	}
	for id := range committed {
		if copies[id] == 0 {
			b.lost = append(b.lost, id)
		}
	}
	for id, of := range attempts {
		b.attempts += len(of)
		for i := 1; i < len(of); i++ {
			b.explain(a, id, of[:i], of[i])
		}
	}
	return b
}

// explain wants a reason for an attempt in view of each one before it.
func (b *relayBooks) explain(a relayAudit, id string, before []attempt, again attempt) {
	var why string
	for _, first := range before {
		if why = a.explain(first, again); why == "" {
			b.unexplained = append(b.unexplained, fmt.Sprintf("%s: %+v after %+v", id, again, first))
			return
		}
	}
	b.extra[why]++
}

func (b relayBooks) String() string {
	var why []string
	for _, k := range slices.Sorted(maps.Keys(b.extra)) {
		why = append(why, fmt.Sprintf("%d because %s", b.extra[k], k))
	}
	return fmt.Sprintf("%d messages committed, %d rolled back; %d attempts, %d in the stream; %d lost, %d phantoms; further attempts: %s, %d unexplained; %d out of order",
		b.written, b.rolledBack, b.attempts, b.stored, len(b.lost), len(b.phantom), cmp.Or(strings.Join(why, ", "), "0"), len(b.unexplained), len(b.disorder))
}

// mustBalance fails the test for whatever must not be.
func (b relayBooks) mustBalance(t *testing.T, allowed ...string) {
	t.Helper()
	t.Log(b)
	for what, found := range map[string][]string{
		"committed and not published": b.lost, "published and not committed": b.phantom, "stored more often than sent": b.unsent,
		"sent again without a reason": b.unexplained, "out of order": b.disorder,
	} {
		if len(found) > 0 {
			t.Errorf("%d messages are %s, such as %s", len(found), what, found[0])
		}
	}
	for why, n := range b.extra {
		if !slices.Contains(allowed, why) {
			t.Errorf("%d further attempts because %s, want none", n, why)
		}
	}
}

// A place is where a message stands among those of its key, as the business committed them.
type place struct {
	key string
	n   int64
}

// disordered returns messages whose first copy came before that of an earlier one of their key.
func disordered(places map[string]place, stream []string) (wrong []string) {
	last := map[string]int64{}
	seen := map[string]bool{}
	for _, id := range stream {
		p := places[id]
		if seen[id] {
			continue
		}
		seen[id] = true
		if p.n <= last[p.key] {
			wrong = append(wrong, fmt.Sprintf("%s, number %d of key %s, after number %d", id, p.n, p.key, last[p.key]))
		}
		last[p.key] = max(last[p.key], p.n)
	}
	return wrong
}
