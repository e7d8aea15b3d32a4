package lineartest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

// A pool has what was granted, to all workers: some settle for others, some long after they lost their claim.
type pool struct {
	group   string // of the keys
	mu      sync.Mutex
	claims  []Input
	decided [Keys]uint64
}

func (p *pool) granted(in Input, fence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.Fence = fence
	p.claims = append(p.claims, in)
}

func (p *pool) failed(key int, fence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided[key] = fence
}

// draw chooses the next operation.
func (p *pool) draw(rnd *rand.Rand) Input {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := Input{
		What: "claim", Key: rnd.IntN(Keys), Owner: ids.Token(), Most: 2 + rnd.IntN(2), Park: rnd.IntN(4) == 0,
		Content: "a",
	}
	if rnd.IntN(40) == 0 {
		in.Content = "b"
	}
	if rnd.IntN(2) == 0 {
		in.Rerun = p.decided[in.Key]
	}
	n := len(p.claims)
	if n == 0 || rnd.IntN(100) < 40 {
		return in
	}
	c := p.claims[max(0, n-1-rnd.IntN(6))]
	in.Key, in.Owner, in.Fence, in.Content = c.Key, c.Owner, c.Fence, c.Content
	switch d := rnd.IntN(100); {
	case d < 12: // the owner asks again, be it late
		in.Rerun = 0
	case d < 25:
		in.What = "extend"
	case d < 45:
		in.What, in.Kind, in.Result, in.Publish = "finish", dedupstore.Succeeded, ids.New(), rnd.IntN(2) == 0
		if rnd.IntN(3) > 0 {
			in.Kind = dedupstore.Failed
		}
	case d < 80:
		in.What, in.Delay, in.Give = "release", rnd.IntN(2) == 0, rnd.IntN(3) == 0
	default:
		in.What = "published"
	}
	return in
}

// perform makes an operation, and adds what it was granted to the pool. After an error nobody knows what happened: the
// caller looks whether it is one that may come.
func (p *pool) perform(ctx context.Context, s dedupstore.Store, in Input) (Output, error) {
	k := dedupstore.Key{Tenant: "acme", Group: p.group, Handler: "charge", ID: string(rune('a' + in.Key))}
	if in.What == "claim" {
		return p.claim(ctx, s, k, in)
	}
	c := dedupstore.Claim{Key: k, Owner: in.Owner, Fence: in.Fence, Attempt: 1, Lease: Lease, Retention: time.Minute}
	var err error
	switch in.What {
	case "extend":
		err = dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: Lease, Started: true})
	case "finish":
		f := dedupstore.Finish{
			Retention: time.Minute, Outcome: dedupstore.Outcome{Kind: in.Kind, Result: []byte(in.Result)},
		}
		if in.Publish {
			f.Outcome.Produced = []dedupstore.Produced{{ID: in.Result}}
		}
		err = dedupstore.SettleOne(ctx, s, c, f)
	case "release":
		r := dedupstore.Release{Uncounted: in.Give}
		if in.Delay {
			r.Delay = Delay
		}
		err = dedupstore.SettleOne(ctx, s, c, r)
	case "published":
		err = dedupstore.SettleOne(ctx, s, c, dedupstore.Published{Retention: time.Minute})
	}
	switch {
	case errors.Is(err, dedupstore.ErrClaimLost):
		return Output{Class: Lost}, nil
	case err != nil:
		return Output{Unheard: true}, err
	}
	return Output{Class: OK}, nil
}

func (p *pool) claim(ctx context.Context, s dedupstore.Store, k dedupstore.Key, in Input) (Output, error) {
	a, err := dedupstore.ClaimOne(ctx, s, dedupstore.Request{
		Key: k, Owner: in.Owner, Lease: Lease, Retention: time.Minute, MaxAttempts: in.Most, ParkExpired: in.Park,
		Rerun: in.Rerun, Fingerprint: dedupstore.Fingerprint{Scheme: "test", Sum: in.Content},
	})
	if err != nil {
		return Output{Unheard: true}, err
	}
	if a.Claim.Fence != 0 {
		p.granted(in, a.Claim.Fence)
	}
	if a.Status == dedupstore.Done && a.Outcome.Kind != dedupstore.Succeeded {
		p.failed(in.Key, a.Fence)
	}
	return Output{
		Class: string(a.Status), Found: a.Found, Fence: a.Claim.Fence, Named: a.Fence, Attempt: a.Claim.Attempt,
		Kind: a.Outcome.Kind, Result: string(a.Outcome.Result), Wait: a.Wait,
	}, nil
}
