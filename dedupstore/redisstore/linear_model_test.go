package redisstore

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncemill/oncemill/dedupstore"
)

// The durations of all operations of a history.
const (
	linearLease = 5 * time.Millisecond
	linearDelay = 2 * time.Millisecond
)

// An input is an operation on one key, as it was called.
type input struct {
	what        string // claim, extend, finish, release or published
	key         int
	owner       string
	fence       uint64 // of the claim that settles
	most        int
	park        bool
	rerun       uint64
	content     string // fingerprint
	kind        dedupstore.Kind
	result      string
	publish     bool // finish with something to publish
	delay, give bool // release: with a delay, and giving the attempt back
}

// An output is what was answered. When unheard, the operation may have happened any time after its call, or never.
type output struct {
	unheard bool
	class   string // a status, ok or lost
	found   dedupstore.State
	fence   uint64 // of the claim
	named   uint64 // Answer.Fence
	attempt int
	kind    dedupstore.Kind
	result  string
}

// A model is the record as the contract describes it. A fence that was granted in an answer that nobody heard is 0, and
// greater than low. A lease may end at any time after it was granted, but not before until.
type model struct {
	state    dedupstore.State
	owner    string
	fence    uint64
	low      uint64
	until    uint64 // no claim is granted to another before, in µs of the server's clock
	attempts int
	settled  string
	started  bool
	content  string
	kind     dedupstore.Kind
	result   string
	decided  uint64 // 0: unknown
}

// A branch is one way in which an operation can go.
type branch struct {
	class   string
	found   dedupstore.State
	next    model
	granted bool // next has a new fence, not known yet
	decides bool // that fence is the one under which the outcome is decided
}

func linearModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(input).key
				byKey[k] = append(byKey[k], op)
			}
			parts := make([][]porcupine.Operation, 0, len(byKey))
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{model{state: dedupstore.Absent}} },
		Step: func(state, in, out any) []any {
			st, o := state.(model), out.(output)
			var next []any
			if o.unheard {
				next = append(next, st)
			}
			for _, b := range st.branches(in.(input)) {
				if n, ok := b.observe(o); ok && !slices.Contains(next, any(n)) {
					next = append(next, n)
				}
			}
			return next
		},
	}
	return m.ToModel()
}

// floor is the least fence that the record can have.
func (st model) floor() uint64 {
	if st.fence != 0 {
		return st.fence
	}
	return st.low + 1
}

func (st model) hasSettled(owner string) bool {
	return slices.Contains(strings.Fields(st.settled), owner)
}

func (st model) settledBy(owner string) model {
	all := append(strings.Fields(st.settled), owner)
	st.settled = strings.Join(all[max(0, len(all)-4):], " ")
	return st
}

// observe reports whether the branch explains the output, and the record with what the output tells about it.
func (b branch) observe(o output) (model, bool) {
	st := b.next
	if o.unheard {
		return st, true
	}
	if o.class != b.class || o.found != b.found {
		return st, false
	}
	bind := func(fence uint64) bool {
		if st.fence == 0 && st.state != dedupstore.Absent {
			if fence <= st.low {
				return false
			}
			st.fence = fence
		}
		return st.fence == fence
	}
	decided := func() bool {
		if st.decided == 0 {
			st.decided = o.named
		}
		return st.decided == o.named && o.kind == st.kind && o.result == st.result
	}
	switch dedupstore.Status(o.class) {
	case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
		if !bind(o.fence) || o.attempt != st.attempts {
			return st, false
		}
		if b.granted {
			st.until = st.fence + uint64(linearLease.Microseconds())
		}
		if b.decides {
			st.decided = st.fence
		}
		if o.class == string(dedupstore.AcquiredPublish) {
			return st, decided()
		}
	case dedupstore.Busy, dedupstore.Mismatch:
		return st, bind(o.named)
	case dedupstore.Done:
		return st, decided()
	}
	return st, true
}

func (st model) branches(in input) []branch {
	if in.what == "claim" {
		return st.claim(in)
	}
	if in.what == "release" && st.state == dedupstore.Retryable && st.hasSettled(in.owner) {
		return []branch{{class: replyOK, next: st}}
	}
	lost := branch{class: replyLost, next: st}
	switch {
	case st.owner == "" || st.owner != in.owner || st.fence != 0 && st.fence != in.fence || st.fence == 0 && in.fence <= st.low:
		return []branch{lost}
	case st.fence == 0: // either this is the fence that nobody heard of, or another claim of this owner had it
		st.fence = in.fence
		return []branch{lost, st.settle(in)}
	}
	return []branch{st.settle(in)}
}

// settle is an operation by the owner, under the right fence.
func (st model) settle(in input) branch {
	ok, lost := branch{class: replyOK, next: st}, branch{class: replyLost, next: st}
	leased := st.floor() + uint64(linearLease.Microseconds())
	switch in.what {
	case "extend":
		if st.state != dedupstore.Running && st.state != dedupstore.Publishing {
			return lost
		}
		ok.next.until = leased
		ok.next.started = st.started || st.state == dedupstore.Running
	case "finish":
		switch {
		case st.state != dedupstore.Running && st.hasSettled(in.owner):
			return ok
		case st.state != dedupstore.Running:
			return lost
		}
		ok.next = st.settledBy(in.owner)
		ok.next.kind, ok.next.result, ok.next.decided = in.kind, in.result, st.fence
		ok.next.state, ok.next.until = dedupstore.Finished, 0
		if in.publish {
			ok.next.state, ok.next.until = dedupstore.Publishing, leased
		}
	case "release":
		if st.state != dedupstore.Running {
			return lost
		}
		ok.next = st.settledBy(in.owner)
		ok.next.state, ok.next.owner, ok.next.started, ok.next.until = dedupstore.Retryable, "", false, 0
		if in.delay {
			ok.next.until = st.floor() + uint64(linearDelay.Microseconds())
		}
		if in.give {
			ok.next.attempts--
		}
	case "published":
		if st.state != dedupstore.Publishing && st.state != dedupstore.Finished {
			return lost
		}
		ok.next.state, ok.next.until = dedupstore.Finished, 0
	}
	return ok
}

// claim follows the order that dedupstore.Store documents.
func (st model) claim(in input) []branch {
	as := func(s dedupstore.Status) branch { return branch{class: string(s), found: st.state, next: st} }
	switch {
	case st.content != "" && st.content != in.content:
		return []branch{as(dedupstore.Mismatch)}
	case st.state == dedupstore.Finished:
		again := st
		again.attempts = 0
		switch {
		case in.rerun == 0 || st.kind == dedupstore.Succeeded || st.decided != 0 && st.decided != in.rerun:
			return []branch{as(dedupstore.Done)}
		case st.decided == 0:
			return []branch{as(dedupstore.Done), again.run(in)}
		}
		return []branch{again.run(in)}
	case st.owner == in.owner && st.state == dedupstore.Running:
		return []branch{as(dedupstore.AcquiredRun)}
	case st.owner == in.owner && st.state == dedupstore.Publishing:
		return []branch{as(dedupstore.AcquiredPublish)}
	case st.hasSettled(in.owner):
		return []branch{as(dedupstore.Busy)}
	}
	var ways []branch
	if st.until != 0 { // may still be leased, or not due
		ways = append(ways, as(dedupstore.Busy))
	}
	switch {
	case st.state == dedupstore.Publishing:
		b := st.own(in)
		b.class = string(dedupstore.AcquiredPublish)
		return append(ways, b)
	case st.state == dedupstore.Running && st.started && in.park:
		return append(ways, st.end(in, dedupstore.Unknown))
	case st.attempts >= in.most:
		return append(ways, st.end(in, dedupstore.Failed))
	}
	return append(ways, st.run(in))
}

// own gives the record to the claimer, under a fence that only the answer tells.
func (st model) own(in input) branch {
	b := branch{found: st.state, next: st, granted: true}
	b.next.owner, b.next.fence = in.owner, 0
	b.next.low = max(st.floor(), st.until-min(st.until, 1))
	if st.state == dedupstore.Absent {
		b.next.low = 0
	}
	b.next.until = b.next.low + 1 + uint64(linearLease.Microseconds())
	return b
}

func (st model) run(in input) branch {
	b := st.own(in)
	b.class = string(dedupstore.AcquiredRun)
	b.next.state, b.next.started, b.next.content = dedupstore.Running, false, in.content
	b.next.kind, b.next.result, b.next.decided = "", "", 0
	b.next.attempts++
	return b
}

func (st model) end(in input, kind dedupstore.Kind) branch {
	b := st.own(in)
	b.class, b.decides = string(dedupstore.AcquiredPublish), true
	b.next.state, b.next.kind, b.next.result, b.next.decided = dedupstore.Publishing, kind, "", 0
	return b
}
