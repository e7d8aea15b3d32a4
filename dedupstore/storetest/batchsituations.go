package storetest

import "github.com/oncemill/oncemill/dedupstore"

// A situation is what a claim can find, and how it is answered then.
type situation struct {
	name string

	// prepare brings the key there, but for the end of short leases, and returns the claim that finds it so.
	prepare func(k *kit, id string) dedupstore.Request

	// want is status, state that was found, trace, outcome, attempt of the claim, and whether there is a long wait.
	// Why an outcome is exhausted or unknown every store says in its own words.
	want dedupstore.Answer
}

func (s situation) check(k *kit, a dedupstore.Answer) {
	k.Helper()
	w := s.want
	if a.Found != w.Found || a.Trace != w.Trace {
		k.Errorf("%s: found %s, trace %q, want %s, %q", s.name, a.Found, a.Trace, w.Found, w.Trace)
	}
	switch a.Status {
	case dedupstore.AcquiredRun:
		k.attempt(a, w.Claim.Attempt)
	case dedupstore.AcquiredPublish:
		k.attempt(a, w.Claim.Attempt)
		if w.Outcome.Exhausted || w.Outcome.Kind == dedupstore.Unknown {
			a.Outcome.Reason = ""
		}
		k.sameOutcome(a.Outcome, w.Outcome)
	case dedupstore.Busy:
		if w.Wait > 0 {
			k.waits(a)
		} else if a.Wait != 0 {
			k.Errorf("%s: Wait is %v, want 0", s.name, a.Wait)
		}
	case dedupstore.Done:
		k.keptOutcome(a.Outcome, w.Outcome)
	}
}

const traced = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var (
	granted = dedupstore.Answer{Status: dedupstore.AcquiredRun, Found: dedupstore.Absent,
		Claim: dedupstore.Claim{Attempt: 1}}
	toPublish = dedupstore.Answer{Status: dedupstore.AcquiredPublish, Found: dedupstore.Running,
		Claim: dedupstore.Claim{Attempt: 1}}
	isBusy = dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Running, Wait: long}
	isDone = dedupstore.Answer{Status: dedupstore.Done, Found: dedupstore.Finished}
)

// situations are the ways in which Store.Claim answers.
var situations = []situation{
	{"fresh", func(k *kit, id string) dedupstore.Request { return k.request(id) }, granted},
	{"held", func(k *kit, id string) dedupstore.Request {
		k.run(id)
		return k.request(id)
	}, isBusy},
	{"asked again", func(k *kit, id string) dedupstore.Request {
		r := k.request(id)
		k.claim(r, dedupstore.AcquiredRun)
		return r
	}, foundIn(granted, dedupstore.Running, 1)},
	{"crashed", func(k *kit, id string) dedupstore.Request {
		r := k.brief(id)
		r.Trace = traced
		k.claim(r, dedupstore.AcquiredRun)
		return k.request(id)
	}, dedupstore.Answer{
		Status: dedupstore.AcquiredRun, Found: dedupstore.Running, Claim: dedupstore.Claim{Attempt: 2}, Trace: traced,
	}},
	{"released", func(k *kit, id string) dedupstore.Request {
		k.settle(k.run(id), dedupstore.Release{})
		return k.request(id)
	}, foundIn(granted, dedupstore.Retryable, 2)},
	{"not due", func(k *kit, id string) dedupstore.Request {
		k.settle(k.run(id), dedupstore.Release{Delay: long})
		return k.request(id)
	}, foundIn(isBusy, dedupstore.Retryable, 0)},
	{"late copy", func(k *kit, id string) dedupstore.Request {
		r := k.request(id)
		k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{})
		return r
	}, dedupstore.Answer{Status: dedupstore.Busy, Found: dedupstore.Retryable}},
	{"attempts are spent", func(k *kit, id string) dedupstore.Request {
		k.claim(k.brief(id), dedupstore.AcquiredRun)
		r := k.request(id)
		r.MaxAttempts = 1
		return r
	}, ending(toPublish, dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true})},
	{"parked", func(k *kit, id string) dedupstore.Request {
		k.extend(k.claim(k.brief(id), dedupstore.AcquiredRun).Claim, short)
		r := k.request(id)
		r.ParkExpired = true
		return r
	}, ending(toPublish, dedupstore.Outcome{Kind: dedupstore.Unknown})},
	{"publishing", func(k *kit, id string) dedupstore.Request {
		k.settle(k.run(id), finishTo(succeeded("paid"), receipt))
		return k.request(id)
	}, foundIn(isBusy, dedupstore.Publishing, 0)},
	{"publisher crashed", func(k *kit, id string) dedupstore.Request {
		k.settle(k.claim(k.brief(id), dedupstore.AcquiredRun).Claim, finishTo(succeeded("paid"), receipt))
		return k.request(id)
	}, ending(foundIn(toPublish, dedupstore.Publishing, 1), finishTo(succeeded("paid"), receipt).Outcome)},
	{"done", func(k *kit, id string) dedupstore.Request {
		f := finishTo(succeeded("paid"), receipt)
		f.Published = true
		k.settle(k.run(id), f)
		return k.request(id)
	}, ending(isDone, finishTo(succeeded("paid"), receipt).Outcome)},
	{"failed", func(k *kit, id string) dedupstore.Request {
		k.settle(k.run(id), finish(failed("card refused")))
		return k.request(id)
	}, ending(isDone, failed("card refused"))},
	{"failure that is run again", func(k *kit, id string) dedupstore.Request {
		c := k.run(id)
		k.settle(c, finish(failed("card refused")))
		r := k.request(id)
		r.Rerun = c.Fence
		return r
	}, foundIn(granted, dedupstore.Finished, 1)},
	{"other content", func(k *kit, id string) dedupstore.Request {
		k.claim(k.of(id, one), dedupstore.AcquiredRun)
		return k.of(id, two)
	}, dedupstore.Answer{Status: dedupstore.Mismatch, Found: dedupstore.Running}},
}

// foundIn is the answer from another state.
func foundIn(a dedupstore.Answer, state dedupstore.State, attempt int) dedupstore.Answer {
	a.Found, a.Claim.Attempt = state, attempt
	return a
}

// ending is the answer with an outcome.
func ending(a dedupstore.Answer, o dedupstore.Outcome) dedupstore.Answer {
	a.Outcome = o
	return a
}
