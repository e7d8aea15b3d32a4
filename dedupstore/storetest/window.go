package storetest

import (
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

var windowCases = []testCase{
	{
		name: "expiry/takeover-renews-the-window",
		why:  "a record that goes before the lease of who took it over lets a second holder in",
		test: func(k *kit) {
			for id, step := range takeovers {
				k.within(200*time.Millisecond, func(k *kit, window time.Duration) {
					k.claim(step.leave(k, id, window), step.status)
					k.pass(window + short)
					if a := k.claim(k.request(id), dedupstore.Busy); a.Found == dedupstore.Absent {
						k.Errorf("%s: the record is gone", id)
					}
				})
			}
		},
	},
	{
		name: "expiry/asking-does-not-shorten-the-window",
		why: "a stranger with a short window must not make the store forget what it protects, nor a late copy of a " +
			"claim",
		test: func(k *kit) {
			for id, step := range askings {
				r := step.leave(k, id, long)
				before := k.ttl(id)
				r.Lease, r.Retention = time.Millisecond, time.Millisecond
				k.claim(r, step.status)
				if after := k.ttl(id); after > before || after < before-long/2 {
					k.Errorf("%s: asking changed the TTL from %v to %v", id, before, after)
				}
				k.pass(short)
				if a := k.ask(k.request(id)); a.Found == dedupstore.Absent {
					k.Errorf("%s: asking with a window of a millisecond made the store forget the record", id)
				}
			}
		},
	},
	{
		name: "expiry/asking-does-not-prolong-the-window",
		why:  "duplicates that keep coming must not keep a record for ever",
		test: func(k *kit) {
			for id, step := range askings {
				k.within(200*time.Millisecond, func(k *kit, window time.Duration) {
					r := step.leave(k, id, window)
					before := k.ttl(id)
					r.Lease, r.Retention = 9*long, 9*long
					k.claim(r, step.status)
					if after := k.ttl(id); after > before {
						k.Errorf("%s: asking changed the TTL from %v to %v", id, before, after)
					}
					if step.brief {
						k.pass(2 * window)
						k.found(k.ask(k.request(id)), dedupstore.Absent)
					}
				})
			}
		},
	},
}

// A step leaves a record whose window is the given one, and returns a claim that is answered with the status.
type step struct {
	status dedupstore.Status
	brief  bool // the record is gone after twice the window
	leave  func(k *kit, id string, window time.Duration) dedupstore.Request
}

// takeovers are claims that make another the owner of a record.
var takeovers = map[string]step{
	"run taken over": {status: dedupstore.AcquiredRun,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			r := k.brief(id)
			r.Retention = window
			k.expired(r, dedupstore.AcquiredRun)
			return k.request(id)
		}},
	"publish step taken over": {status: dedupstore.AcquiredPublish,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			f := finishTo(succeeded(""), receipt)
			f.Retention = window
			k.settle(k.claim(k.brief(id), dedupstore.AcquiredRun).Claim, f)
			k.pass(short)
			return k.request(id)
		}},
	"rerun": {status: dedupstore.AcquiredRun, leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
		c := k.run(id)
		k.settle(c, dedupstore.Finish{Outcome: failed(""), Retention: window})
		r := k.request(id)
		r.Rerun = c.Fence
		return r
	}},
}

// askings are claims that change nothing.
var askings = map[string]step{
	"running": {status: dedupstore.Busy, brief: true,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			r := k.request(id)
			r.Lease, r.Retention = window, window
			k.claim(r, dedupstore.AcquiredRun)
			return k.request(id)
		}},
	"running, asked again": {status: dedupstore.AcquiredRun, brief: true,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			r := k.request(id)
			r.Lease, r.Retention = window, window
			k.claim(r, dedupstore.AcquiredRun)
			return r
		}},
	"not due": {status: dedupstore.Busy, brief: true,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			r := k.request(id)
			r.Retention = window
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, dedupstore.Release{Delay: window})
			return k.request(id)
		}},
	"publishing": {status: dedupstore.Busy, leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
		f := finishTo(succeeded(""), receipt)
		f.Retention = window
		k.settle(k.run(id), f)
		return k.request(id)
	}},
	"publishing, asked again": {status: dedupstore.AcquiredPublish,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			f := finishTo(succeeded(""), receipt)
			f.Retention = window
			r := k.request(id)
			k.settle(k.claim(r, dedupstore.AcquiredRun).Claim, f)
			return r
		}},
	"done": {status: dedupstore.Done, brief: true,
		leave: func(k *kit, id string, window time.Duration) dedupstore.Request {
			k.settle(k.run(id), dedupstore.Finish{Outcome: succeeded(""), Retention: window})
			return k.request(id)
		}},
}

// ttl is how much longer the record is kept; always zero on a store that cannot tell.
func (k *kit) ttl(id string) time.Duration {
	if k.TTL == nil {
		return 0
	}
	d, ok := k.TTL(k.key(id))
	if !ok {
		k.Errorf("%s has no TTL", id)
	}
	return d
}
