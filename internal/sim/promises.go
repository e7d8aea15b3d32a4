package sim

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The promises of docs/guarantees.md, in its words.
const (
	noLoss  = "No message is lost"
	ackRule = "A message is acked only after its outcome is stored and its outputs are published, or after its " +
		"dead letter is published"
	oneOwner      = "A key has one owner at a time while leases hold"
	noRerun       = "A key with an outcome does not run again within the dedup window"
	rerunOnce     = "A stored failure runs again only on a request that names it, once"
	zombie        = "A zombie's outcome is refused, and it neither acks nor rejects its message"
	ownOnly       = "A record that is locked or slow holds up its own message only"
	outputsKeep   = "Outputs keep their IDs and bytes"
	notBeside     = "Two copies are never published side by side while leases hold"
	counted       = "Crashes are counted; a message that kills its handler ends after MaxAttempts runs"
	oneLetter     = "A failure ends in one dead letter; its duplicates make no second one"
	suspectAlone  = "After two crashes in a row a message runs while no other such message does in its worker"
	noSecond      = "A second effect is possible only in the cases of the page"
	atMostOnce    = "At most once"
	steers        = "Each error steers its own message"
	batchTogether = "A batch that fails as a whole costs no attempt"
	inboxOnce     = "Inbox: no second effect in that database"
	inboxNothing  = "Inbox: a run that errs, panics or is cancelled has no effect there"
	failsClosed   = "A policy that fails closed holds messages while the store does not answer"
	keptFor       = "An outcome is remembered for the dedup window"
	replayed      = "Every duplicate within the window gets the stored outcome"
	fenceGrows    = "A fence grows with every new owner of a key"
)

// A grant is the right to a key, as the server gave it.
type grant struct {
	owner   string
	fence   uint64
	process string
	run     bool // else to publish
	ends    time.Time
	started bool   // the server knows that the handler has been called
	how     string // it was settled; empty: it was not
	lost    bool   // another owner came
	gone    bool   // the record is
	calls   int    // of the handler
	whole   int    // batches that failed as a whole
	effect  bool
	excused bool   // its effect explains one more
	moved   int    // how often the clock had been moved when the grant was made
	running bool   // the handler is
	result  string // how the handler ended: "success", or the kind of its error; empty: it has not
	first   bool   // there is no record yet: it is in a transaction
	suspect bool
}

// An ended is an outcome that the server has.
type ended struct {
	fence      uint64
	outcome    dedupstore.Outcome
	publishing bool
	gone       time.Time // when it was forgotten; zero: it is there
}

func (g *grant) over() bool { return g.how != "" }

// A subject is what is known of one key.
type subject struct {
	id                          string
	grant                       *grant
	byFence                     map[uint64]*grant
	outcome                     *ended   // now
	outcomes                    []*ended // ever
	due                         time.Time
	expires                     time.Time // by the server's clock, as due
	attempts, returned, crashes int
	fence                       uint64
	content                     string   // fingerprint
	settlers                    []string // the last owners that have settled it

	effects  int
	spare    []string // explanations that are left
	dead     map[uint64]map[string]bool
	reruns   map[uint64]int // granted, by the fence that they named
	bypassed int
}

// A judge sees what happens at the border, and compares it with the promises.
type judge struct {
	w          *world
	subjects   map[string]*subject
	park       bool // all policies do
	mute       bool // there are no dead letters
	inbox      bool
	moved      int            // how often the server's clock was moved
	sent       map[string]int // of published messages, by ID
	payloads   map[string]string
	mismatches map[string]int // dead letters of them
	processes  map[string]*process
}

func (j *judge) versionOf(name string) *version {
	if p := j.processes[name]; p != nil {
		return &p.version
	}
	return nil
}

func (j *judge) of(id string) *subject {
	s := j.subjects[id]
	if s == nil {
		s = &subject{
			id: id, byFence: map[uint64]*grant{}, dead: map[uint64]map[string]bool{}, reruns: map[uint64]int{},
		}
		j.subjects[id] = s
	}
	return s
}

// explain notes an event of the page that explains one more effect. Over an inbox there are two of them.
func (j *judge) explain(s *subject, why string) {
	if !j.inbox || why == windowPassed || why == recordDeleted {
		s.spare = append(s.spare, why)
	}
}

const (
	windowPassed  = "the dedup window has passed"
	recordDeleted = "somebody deleted the record"
)

// expire sees to it that time has passed: an outcome is forgotten at the end of its window.
func (j *judge) expire(s *subject, now time.Time) {
	if (s.outcome != nil || s.grant != nil) && !now.Before(s.expires) {
		j.w.saw("window passed")
		j.explain(s, windowPassed)
		j.forget(s)
	}
}

// forget notes that the record is gone.
func (j *judge) forget(s *subject) {
	if s.outcome != nil {
		s.outcome.gone = time.Now()
	}
	if s.grant != nil {
		s.grant.gone = true
	}
	s.settlers = nil
	s.outcome, s.grant, s.due, s.attempts, s.returned, s.crashes, s.content = nil, nil, time.Time{}, 0, 0, 0, ""
}

// lost notes that the server has lost a record.
func (j *judge) lostRecord(id string) {
	s := j.of(id)
	if s.outcome == nil && s.grant == nil {
		return
	}
	j.w.saw("record lost")
	j.explain(s, "the store has lost the record")
	j.forget(s)
	s.fence = 0
}

func (j *judge) claimed(by string, r dedupstore.Request, a dedupstore.Answer, now time.Time) {
	s, w := j.of(r.Key.ID), j.w
	j.expire(s, now)
	g := s.grant
	live := g != nil && !g.over() && now.Before(g.ends)
	switch a.Status {
	case dedupstore.AcquiredRun:
		if g != nil && g.owner == r.Owner && g.run && !g.over() {
			w.saw("claim asked again")
			if g.fence != a.Claim.Fence {
				w.breaks(fenceGrows, "%s: the same owner got fence %d, then %d", s.id, g.fence, a.Claim.Fence)
			}
			return
		}
		if live {
			w.breaks(oneOwner, "%s: %s gets a run under fence %d while that of %s under %d has a lease for %v",
				s.id, by, a.Claim.Fence, g.process, g.fence, g.ends.Sub(now))
		}
		if known := s.byFence[a.Claim.Fence]; known != nil && !known.first {
			w.breaks(fenceGrows, "%s: fence %d is given twice", s.id, a.Claim.Fence)
		}
		rerun := false
		if o := s.outcome; o != nil {
			rerun = r.Rerun == o.fence && r.Rerun != 0 && o.outcome.Kind != dedupstore.Succeeded && !o.publishing
			if !rerun {
				w.breaks(noRerun, "%s: %s gets a run under fence %d although there is an outcome, %s, for %v more",
					s.id, by, a.Claim.Fence, o.outcome.Kind, s.expires.Sub(now))
			}
			if s.reruns[o.fence]++; s.reruns[o.fence] > 1 {
				w.breaks(rerunOnce, "%s: the failure under fence %d runs again a second time", s.id, o.fence)
			}
			w.saw("rerun")
			j.explain(s, "somebody asked for a rerun")
			o.gone = time.Now()
			s.outcome, s.attempts, s.returned, s.crashes = nil, 0, 0, 0
			s.grant, g = nil, nil
		} else if now.Before(s.due) {
			w.breaks(counted, "%s: a retry is granted %v before it is due", s.id, s.due.Sub(now))
		}
		if g != nil && g.run && !g.over() { // its lease ended
			w.saw("takeover")
			s.crashes++
			if r.ParkExpired && g.started {
				w.breaks(atMostOnce, "%s: the started run under fence %d is taken over by a policy that parks", s.id,
					g.fence)
			}
			j.end(s, g, "its lease ended before its outcome was stored")
		}
		if r.SuspectAfter > 0 && s.crashes >= r.SuspectAfter {
			w.breaks(suspectAlone, "%s: a run is granted after %d crashes in a row to one who refuses those", s.id,
				s.crashes)
		}
		s.attempts++
		if a.Claim.Attempt != s.attempts || s.attempts > r.MaxAttempts {
			w.breaks(counted, "%s: attempt %d of %d is called %d", s.id, s.attempts, r.MaxAttempts, a.Claim.Attempt)
		}
		j.granted(s, by, r, a, true, now)
		s.grant.suspect = s.crashes >= 2
		if s.grant.suspect {
			w.saw("suspect")
		}
		s.content = cmpOr(r.Fingerprint.Sum, s.content)
	case dedupstore.AcquiredPublish:
		if g != nil && g.owner == r.Owner && !g.over() && g.fence == a.Claim.Fence {
			w.saw("claim asked again")
			return
		}
		if live {
			w.breaks(notBeside, "%s: %s may publish while %s has a lease for %v", s.id, by, g.process, g.ends.Sub(now))
		}
		if s.outcome == nil { // the claim itself ends the run
			parks := a.Outcome.Kind == dedupstore.Unknown
			switch {
			case parks && (g == nil || g.over() || !g.started || !r.ParkExpired):
				w.breaks(atMostOnce, "%s: parked, although no started run has expired", s.id)
			case !parks && s.attempts < r.MaxAttempts:
				w.breaks(counted, "%s: exhausted after %d of %d attempts", s.id, s.attempts, r.MaxAttempts)
			}
			if parks {
				w.saw("parked")
			} else {
				w.saw("exhausted by crashes")
			}
			if g != nil && g.run && !g.over() {
				j.end(s, g, "its lease ended before its outcome was stored")
			}
			s.outcome = &ended{fence: a.Fence, outcome: a.Outcome, publishing: true}
			s.outcomes = append(s.outcomes, s.outcome)
		} else {
			w.saw("publish step taken over")
			if !s.outcome.publishing {
				w.breaks(outputsKeep, "%s: %s is to publish again what has been published", s.id, by)
			}
			j.same(s, a.Outcome)
		}
		j.granted(s, by, r, a, false, now)
	case dedupstore.Done:
		switch {
		case s.outcome == nil || s.outcome.publishing:
			w.breaks(ackRule, "%s: %s is told that the message is done, and it is not", s.id, by)
		default:
			j.same(s, a.Outcome)
			w.saw("duplicate")
		}
	case dedupstore.Busy:
		w.saw("busy")
		settled := g != nil && g.over()
		if !live && !now.Before(s.due) && !settled && s.grant == nil && s.outcome == nil && len(s.byFence) == 0 {
			w.breaks(ownOnly, "%s: %s is told that the key is busy, and nobody has it", s.id, by)
		}
	case dedupstore.Mismatch:
		w.saw("mismatch")
		if s.content == "" || s.content == r.Fingerprint.Sum {
			w.breaks(replayed, "%s: refused as other content, and it is not", s.id)
		}
	case dedupstore.Suspect:
		w.saw("suspect refused")
		if s.crashes+1 < r.SuspectAfter {
			w.breaks(suspectAlone, "%s: refused as a suspect after %d crashes", s.id, s.crashes)
		}
	}
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// same compares an outcome that somebody is given with the stored one.
func (j *judge) same(s *subject, o dedupstore.Outcome) {
	kept := s.outcome.outcome
	if o.Kind != kept.Kind || !bytes.Equal(o.Result, kept.Result) || o.Reason != kept.Reason {
		j.w.breaks(replayed, "%s: somebody is given %s %q %q, and stored is %s %q %q", s.id, o.Kind, o.Reason, o.Result,
			kept.Kind, kept.Reason, kept.Result)
	}
}

func (j *judge) granted(s *subject, by string, r dedupstore.Request, a dedupstore.Answer, run bool, now time.Time) {
	if slices.Contains(s.settlers, r.Owner) {
		j.w.breaks(counted, "%s: a late copy of a claim of %s is granted, whose owner has settled the record", s.id, by)
	}
	if a.Claim.Fence <= s.fence {
		j.w.breaks(fenceGrows, "%s: fence %d after %d", s.id, a.Claim.Fence, s.fence)
	}
	s.fence = max(s.fence, a.Claim.Fence)
	if s.grant != nil && !s.grant.over() {
		s.grant.lost = true
	}
	s.grant = &grant{
		owner: r.Owner, fence: a.Claim.Fence, process: by, run: run, ends: now.Add(r.Lease), moved: j.moved,
	}
	if first := s.byFence[a.Claim.Fence]; first != nil {
		g := s.grant
		g.calls, g.whole, g.result, g.running = first.calls, first.whole, first.result, first.running
	}
	s.due, s.expires = time.Time{}, now.Add(r.Lease+r.Retention)
	s.byFence[a.Claim.Fence] = s.grant
}

// end notes that a run has ended without an outcome: its effect, if it made one, explains one more.
func (j *judge) end(s *subject, g *grant, why string) {
	if g.effect && !g.excused && !j.park {
		g.excused = true
		j.explain(s, fmt.Sprintf("a run made its effect under fence %d, and %s", g.fence, why))
	}
}

// current returns the grant that a claim stands for, if it holds. A lease that has ended holds until somebody comes.
func (s *subject) current(c dedupstore.Claim) *grant {
	if g := s.grant; g != nil && g.owner == c.Owner && g.fence == c.Fence {
		return g
	}
	return nil
}

func (j *judge) extended(by string, x dedupstore.Extension, err error, now time.Time) {
	s, w := j.of(x.Claim.Key.ID), j.w
	j.expire(s, now)
	g := s.current(x.Claim)
	switch {
	case err == nil && (g == nil || g.over()):
		w.breaks(zombie, "%s: %s renews the lease of a claim that it has lost, fence %d", s.id, by, x.Claim.Fence)
	case err == nil:
		g.ends = now.Add(x.Lease)
		g.started = g.started || x.Started && g.run
		s.expires = g.ends.Add(x.Claim.Retention)
	case g != nil && !g.over():
		w.breaks(ownOnly, "%s: %s is told that it has lost its claim, fence %d, and nobody took it: %v", s.id, by,
			x.Claim.Fence, err)
	default:
		w.saw("renewal refused")
	}
}

func (j *judge) settled(by string, one dedupstore.Settling, err error, now time.Time) {
	c := one.Claim
	s, w := j.of(c.Key.ID), j.w
	j.expire(s, now)
	g := s.current(c)
	known := s.byFence[c.Fence]
	if err != nil {
		_, published := one.Settlement.(dedupstore.Published)
		if g != nil && !g.over() && (g.run || published) {
			w.breaks(ownOnly, "%s: the settlement of %s is refused, and nobody took its claim: %v", s.id, by, err)
		}
		w.saw("settlement refused")
		return
	}
	how := saySettlement(one.Settlement)
	how, _, _ = strings.Cut(how, " ")
	if known != nil && known.owner == c.Owner && known.how == how || g != nil && g.how == how {
		w.saw("settlement repeated")
		return
	}
	if how != "published" { // whose owners stores do not remember
		s.settlers = append(s.settlers[max(0, len(s.settlers)+1-dedupstore.MaxSettled):], c.Owner)
	}
	j.fits(s, by, c, known, one.Settlement)
	switch settlement := one.Settlement.(type) {
	case dedupstore.Finish:
		if g == nil || !g.run || g.over() {
			w.breaks(zombie, "%s: the outcome of %s under fence %d is stored, and its claim is not the last one", s.id, by,
				c.Fence)
			return
		}
		if !now.Before(g.ends) {
			w.saw("outcome after the lease")
		}
		o := &ended{fence: c.Fence, outcome: settlement.Outcome, publishing: settlement.Publishes()}
		s.expires = now.Add(settlement.Retention)
		s.outcome = o
		s.outcomes = append(s.outcomes, o)
		g.how = how
		if o.publishing {
			publisher := *g
			publisher.run, publisher.how, publisher.ends = false, "", now.Add(c.Lease)
			s.expires = publisher.ends.Add(settlement.Retention)
			s.grant = &publisher
		}
		w.saw("outcome " + string(settlement.Outcome.Kind))
	case dedupstore.Release:
		if g == nil || !g.run || g.over() {
			w.breaks(zombie, "%s: the release of %s under fence %d is stored, and its claim is not the last one", s.id, by,
				c.Fence)
			return
		}
		g.how = how
		s.expires = now.Add(settlement.Delay + c.Retention)
		j.end(s, g, "was to be tried again")
		if settlement.Delay > 0 {
			s.due = now.Add(settlement.Delay)
		}
		if settlement.Uncounted {
			s.attempts--
			s.returned++
			w.saw("attempt given back")
		} else {
			s.crashes = 0
			w.saw("released")
		}
	case dedupstore.Published:
		if g == nil || g.run || g.over() || s.outcome == nil {
			w.breaks(zombie, "%s: %s notes as published what another has, fence %d", s.id, by, c.Fence)
			return
		}
		g.how = how
		s.outcome.publishing, s.expires = false, now.Add(settlement.Retention)
		if len(s.outcome.outcome.Produced) == 0 {
			s.outcome.outcome.Produced = settlement.Produced
		}
	}
}

// fits compares a settlement with how the handler ended.
func (j *judge) fits(s *subject, by string, c dedupstore.Claim, g *grant, settlement dedupstore.Settlement) {
	w := j.w
	v := j.versionOf(by)
	if g == nil || !g.run || v == nil {
		return
	}
	switch settlement := settlement.(type) {
	case dedupstore.Finish:
		kind := settlement.Outcome.Kind
		if settlement.Retention != v.window {
			w.breaks(keptFor, "%s: the outcome under fence %d is kept for %v, want %v", s.id, c.Fence, settlement.Retention,
				v.window)
		}
		switch {
		case j.inbox && kind != dedupstore.Succeeded: // perhaps the database has refused what the handler made
		case (kind == dedupstore.Succeeded) != (g.result == "success"):
			w.breaks(steers, "%s: the outcome under fence %d is %s, and its handler ended with %q", s.id, c.Fence, kind,
				g.result)
		case kind == dedupstore.Unknown && !v.park && !j.inbox, kind == dedupstore.Unknown && g.result == "no effect":
			w.breaks(steers, "%s: parked under fence %d after %q", s.id, c.Fence, g.result)
		case kind == dedupstore.Failed && !settlement.Outcome.Exhausted && g.result != "permanent":
			w.breaks(steers, "%s: failed for good under fence %d after %q", s.id, c.Fence, g.result)
		case settlement.Outcome.Exhausted && s.attempts < v.attempts:
			w.breaks(counted, "%s: exhausted under fence %d after %d attempts", s.id, c.Fence, s.attempts)
		}
	case dedupstore.Release:
		switch {
		case j.inbox: // the database may have refused what the handler made
		case g.result == "success" || g.result == "permanent":
			w.breaks(steers, "%s: released under fence %d after %q", s.id, c.Fence, g.result)
		case g.result == "" && !settlement.Uncounted && !g.first:
			w.breaks(counted, "%s: an attempt is counted under fence %d, and no handler has failed", s.id, c.Fence)
		case g.result == "whole" && !settlement.Uncounted:
			w.breaks(batchTogether, "%s: a batch that failed as a whole costs an attempt, under fence %d", s.id, c.Fence)
		case v.park && g.result != "no effect" && g.result != "" && !j.inbox:
			w.breaks(atMostOnce, "%s: released under fence %d by a policy that parks after %q", s.id, c.Fence, g.result)
		}
	}
}

// starts: a handler is called. It returns the grant under which it runs, or nil for a run that is not guarded.
func (j *judge) starts(process, id string, fence uint64, now time.Time, beside []*grant) *grant {
	s, w := j.of(id), j.w
	if fence == 0 {
		w.saw("bypassed")
		if v := j.versionOf(process); v != nil && !v.open {
			w.breaks(failsClosed, "%s: a handler runs in %s without a claim", id, process)
		}
		s.bypassed++
		j.explain(s, "the guard was bypassed")
		return nil
	}
	g := s.byFence[fence]
	switch {
	case g == nil || !g.run:
		w.breaks(oneOwner, "%s: a handler runs in %s under fence %d, which nobody was given", id, process, fence)
		return &grant{}
	case g.calls > g.whole:
		w.breaks(oneOwner, "%s: the handler runs twice under fence %d", id, fence)
	case g.first:
		if other := s.grant; other != nil && !other.over() && now.Before(other.ends) {
			w.breaks(oneOwner, "%s: a first run in %s beside that under %d", id, process, other.fence)
		}
	case g.gone || g.moved != j.moved:
	case g.lost || g.over() || !now.Before(g.ends):
		w.breaks(oneOwner, "%s: a handler runs in %s under fence %d, whose lease ended %v ago", id, process, fence,
			now.Sub(g.ends))
	}
	if g.suspect {
		for _, other := range beside {
			if other.suspect && other.running && !other.lost && !other.gone {
				w.breaks(suspectAlone, "%s: a suspect runs in %s beside another", id, process)
			}
		}
		w.saw("suspect runs")
	}
	if g.calls++; g.calls > 1 && g.effect && !j.park {
		j.explain(s, "its batch failed as a whole, and it runs again")
	}
	g.running = true
	return g
}

// makes: a handler makes its effect.
func (j *judge) makes(id string, g *grant) {
	s, w := j.of(id), j.w
	s.effects++
	if g != nil {
		g.effect = true
		if g.lost || g.gone {
			w.saw("effect of a zombie")
			if g.lost {
				j.end(s, g, "it had lost its lease")
			}
		}
	}
	if s.effects == 1 {
		return
	}
	if len(s.spare) == 0 {
		promise := noSecond
		if j.inbox {
			promise = inboxOnce
		}
		if j.park && !j.inbox {
			promise = atMostOnce
		}
		w.breaks(promise, "%s: effect %d has no explanation", id, s.effects)
		return
	}
	w.say("explained: %s: %s", id, s.spare[0])
	s.spare = s.spare[1:]
	w.saw("second effect")
}

// begun: a first run begins in a transaction, without a record.
func (j *judge) begun(by string, r dedupstore.Request, a dedupstore.Answer, now time.Time) {
	s := j.of(r.Key.ID)
	j.expire(s, now)
	j.w.saw("first run")
	if s.outcome != nil {
		j.w.breaks(noRerun, "%s: a first run in %s although there is an outcome", s.id, by)
	}
	s.byFence[a.Claim.Fence] = &grant{
		owner: r.Owner, fence: a.Claim.Fence, process: by, run: true, ends: now.Add(r.Lease), moved: j.moved, first: true,
	}
}

// committed: an effect is in the database.
func (j *judge) committed(id string, fence uint64) {
	j.w.say("committed: %s under fence %d", id, fence)
	j.makes(id, nil)
}

// rolledBack: the database has ended a transaction. Its handler may be called again if the database refused it, or if
// it was a batch.
func (j *judge) rolledBack(c dedupstore.Claim, again bool) {
	if g := j.of(c.Key.ID).byFence[c.Fence]; g != nil && again {
		g.whole = g.calls
	}
}

// published: a message reached the broker.
func (j *judge) published(by, id, of string, fence uint64, outcome, payload string) {
	s, w := j.of(of), j.w
	j.sent[id]++
	content := id + " " + outcome // that of another outcome may have other bytes
	if before, known := j.payloads[content]; known && before != payload {
		w.breaks(outputsKeep, "%s: message %s is published with %q, and was with %q", of, id, payload, before)
	}
	j.payloads[content] = payload
	if fence == 0 {
		return
	}
	for _, o := range s.outcomes {
		if o.fence == fence && o.outcome.Kind == dedupstore.Succeeded {
			w.breaks(inboxNothing, "%s: %s publishes a dead letter of the success under fence %d", of, by, fence)
		}
	}
	if s.dead[fence] == nil {
		s.dead[fence] = map[string]bool{}
	}
	if s.dead[fence][id] = true; len(s.dead[fence]) > 1 {
		w.breaks(oneLetter, "%s: %s publishes a second dead letter of the failure under fence %d", of, by, fence)
	}
	w.saw("dead letter " + outcome)
}

// publishes: somebody begins to publish what an outcome produced.
func (j *judge) publishes(by, of string, now time.Time) {
	s := j.of(of)
	if g := s.grant; g != nil && !g.run && !g.over() && g.process != by && now.Before(g.ends) && g.moved == j.moved {
		mine := false
		for _, other := range s.byFence {
			mine = mine || other.process == by && other.lost && other.moved != j.moved
		}
		if !mine {
			j.w.breaks(notBeside, "%s: %s publishes beside %s, who has a lease for %v", of, by, g.process, g.ends.Sub(now))
		}
	}
}

// acked: a delivery is acknowledged that came at a time.
func (j *judge) acked(by, id string, came time.Time, bypassed, mismatch bool) {
	s, w := j.of(id), j.w
	if bypassed {
		return
	}
	if mismatch {
		if j.mismatches[id] == 0 {
			w.breaks(ackRule, "%s: %s acks a mismatch, and its dead letter is not published", id, by)
		}
		return
	}
	problem := "there is no outcome"
	for _, o := range s.outcomes { // several, if the store has lost the record of one; it published its own
		if !o.gone.IsZero() && o.gone.Before(came) {
			continue
		}
		if problem = j.unpublished(s, o); problem == "" {
			return
		}
	}
	w.breaks(ackRule, "%s: %s acks, and %s", id, by, problem)
}

// unpublished says what of an outcome is not published; empty: all is.
func (j *judge) unpublished(s *subject, o *ended) string {
	if o.outcome.Kind != dedupstore.Succeeded && len(s.dead[o.fence]) == 0 && !j.mute {
		return fmt.Sprintf("the dead letter of %s under fence %d is not published", o.outcome.Kind, o.fence)
	}
	for _, p := range o.outcome.Produced {
		if j.sent[p.ID] == 0 {
			return fmt.Sprintf("its output %s is not published", p.ID)
		}
	}
	return ""
}
