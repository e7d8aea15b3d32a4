package lineartest

import (
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncemill/oncemill/dedupstore"
)

// The durations of all operations of a history, and how many keys it has.
const (
	Lease = 5 * time.Millisecond
	Delay = 2 * time.Millisecond
	Keys  = 4
)

// An Input is an operation on one key, as it was called.
type Input struct {
	What        string // claim, extend, finish, release or published
	Key         int    // below Keys
	Owner       string
	Fence       uint64 // of the claim that settles
	Most        int
	Park        bool
	Rerun       uint64
	Content     string // fingerprint
	Kind        dedupstore.Kind
	Result      string
	Publish     bool // finish with something to publish
	Delay, Give bool // release: with a delay, and giving the attempt back
}

// An Output is what was answered. When Unheard, the operation may have happened any time after its call, or never.
type Output struct {
	Unheard bool
	Class   string // a status, OK or Lost
	Found   dedupstore.State
	Fence   uint64 // of the claim
	Named   uint64 // Answer.Fence
	Attempt int
	Kind    dedupstore.Kind
	Result  string
	Wait    time.Duration
}

// Classes of answers beside the statuses of claims.
const (
	OK   = "ok"
	Lost = "lost"
)

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

// checker is the record of a key as the contract describes it.
func checker() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[int][]porcupine.Operation{}
			for _, op := range history {
				k := op.Input.(Input).Key
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
			st, o := state.(model), out.(Output)
			var next []any
			if o.Unheard {
				next = append(next, st)
			}
			for _, b := range st.branches(in.(Input)) {
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

// observe reports whether the branch explains the Output, and the record with what the Output tells about it.
func (b branch) observe(o Output) (model, bool) {
	st := b.next
	if o.Unheard {
		return st, true
	}
	if o.Class != b.class || o.Found != b.found {
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
			st.decided = o.Named
		}
		return st.decided == o.Named && o.Kind == st.kind && o.Result == st.result
	}
	switch dedupstore.Status(o.Class) {
	case dedupstore.AcquiredRun, dedupstore.AcquiredPublish:
		if !bind(o.Fence) || o.Attempt != st.attempts {
			return st, false
		}
		if b.granted {
			st.until = st.fence + uint64(Lease.Microseconds())
		}
		if b.decides {
			st.decided = st.fence
		}
		if o.Class == string(dedupstore.AcquiredPublish) {
			return st, decided()
		}
	case dedupstore.Busy, dedupstore.Mismatch:
		return st, bind(o.Named)
	case dedupstore.Done:
		return st, decided()
	}
	return st, true
}

func (st model) branches(in Input) []branch {
	if in.What == "claim" {
		return st.claim(in)
	}
	if in.What == "release" && st.state == dedupstore.Retryable && st.hasSettled(in.Owner) {
		return []branch{{class: OK, next: st}}
	}
	lost := branch{class: Lost, next: st}
	switch {
	case st.owner == "" || st.owner != in.Owner || st.fence != 0 && st.fence != in.Fence ||
		st.fence == 0 && in.Fence <= st.low:
		return []branch{lost}
	case st.fence == 0: // either this is the fence that nobody heard of, or another claim of this owner had it
		st.fence = in.Fence
		return []branch{lost, st.settle(in)}
	}
	return []branch{st.settle(in)}
}

// settle is an operation by the owner, under the right fence.
func (st model) settle(in Input) branch {
	ok, lost := branch{class: OK, next: st}, branch{class: Lost, next: st}
	leased := st.floor() + uint64(Lease.Microseconds())
	switch in.What {
	case "extend":
		if st.state != dedupstore.Running && st.state != dedupstore.Publishing {
			return lost
		}
		ok.next.until = leased
		ok.next.started = st.started || st.state == dedupstore.Running
	case "finish":
		switch {
		case st.state != dedupstore.Running && st.hasSettled(in.Owner):
			return ok
		case st.state != dedupstore.Running:
			return lost
		}
		ok.next = st.settledBy(in.Owner)
		ok.next.kind, ok.next.result, ok.next.decided = in.Kind, in.Result, st.fence
		ok.next.state, ok.next.until = dedupstore.Finished, 0
		if in.Publish {
			ok.next.state, ok.next.until = dedupstore.Publishing, leased
		}
	case "release":
		if st.state != dedupstore.Running {
			return lost
		}
		ok.next = st.settledBy(in.Owner)
		ok.next.state, ok.next.owner, ok.next.started, ok.next.until = dedupstore.Retryable, "", false, 0
		if in.Delay {
			ok.next.until = st.floor() + uint64(Delay.Microseconds())
		}
		if in.Give {
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
func (st model) claim(in Input) []branch {
	as := func(s dedupstore.Status) branch { return branch{class: string(s), found: st.state, next: st} }
	switch {
	case st.content != "" && st.content != in.Content:
		return []branch{as(dedupstore.Mismatch)}
	case st.state == dedupstore.Finished:
		again := st
		again.attempts = 0
		switch {
		case in.Rerun == 0 || st.kind == dedupstore.Succeeded || st.decided != 0 && st.decided != in.Rerun:
			return []branch{as(dedupstore.Done)}
		case st.decided == 0:
			return []branch{as(dedupstore.Done), again.run(in)}
		}
		return []branch{again.run(in)}
	case st.owner == in.Owner && st.state == dedupstore.Running:
		return []branch{as(dedupstore.AcquiredRun)}
	case st.owner == in.Owner && st.state == dedupstore.Publishing:
		return []branch{as(dedupstore.AcquiredPublish)}
	case st.hasSettled(in.Owner):
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
	case st.state == dedupstore.Running && st.started && in.Park:
		return append(ways, st.end(in, dedupstore.Unknown))
	case st.attempts >= in.Most:
		return append(ways, st.end(in, dedupstore.Failed))
	}
	return append(ways, st.run(in))
}

// own gives the record to the claimer, under a fence that only the answer tells.
func (st model) own(in Input) branch {
	b := branch{found: st.state, next: st, granted: true}
	b.next.owner, b.next.fence = in.Owner, 0
	b.next.low = max(st.floor(), st.until-min(st.until, 1))
	if st.state == dedupstore.Absent {
		b.next.low = 0
	}
	b.next.until = b.next.low + 1 + uint64(Lease.Microseconds())
	return b
}

func (st model) run(in Input) branch {
	b := st.own(in)
	b.class = string(dedupstore.AcquiredRun)
	b.next.state, b.next.started, b.next.content = dedupstore.Running, false, in.Content
	b.next.kind, b.next.result, b.next.decided = "", "", 0
	b.next.attempts++
	return b
}

func (st model) end(in Input, kind dedupstore.Kind) branch {
	b := st.own(in)
	b.class, b.decides = string(dedupstore.AcquiredPublish), true
	b.next.state, b.next.kind, b.next.result, b.next.decided = dedupstore.Publishing, kind, "", 0
	return b
}
