package dedupstore

import (
	"context"
	"errors"
	"time"
)

// InTx implements [Transactor]. The cheap store is told after the commit.
func (f *FrontStore) InTx(ctx context.Context, c Claim, work func(ctx context.Context) (Settlement, error)) error {
	if c.Front.Fence == 0 {
		return f.inbox.InTx(ctx, c, work)
	}
	var last Settlement
	err := f.inbox.InTx(ctx, c, func(ctx context.Context) (s Settlement, err error) {
		last = nil
		s, err = work(ctx)
		last = s
		return s, err
	})
	if err == nil {
		f.settled(ctx, c, last)
	}
	f.giveUp(ctx, c, err)
	return err
}

// Settle implements [Store]. The cheap store is told when the inbox has it.
func (f *FrontStore) Settle(ctx context.Context, c Claim, s Settlement) error {
	err := f.inbox.Settle(ctx, c, s)
	if c.Front.Fence == 0 {
		return err
	}
	if err == nil {
		f.settled(ctx, c, s)
	}
	f.giveUp(ctx, c, err)
	return err
}

// cheapClaim is the claim in the cheap store.
func cheapClaim(c Claim) Claim {
	c.Fence, c.Front = c.Front.Fence, FrontClaim{}
	return c
}

// settled tells the cheap store of what is committed: of successes what they are, of all else that it is over.
func (f *FrontStore) settled(ctx context.Context, c Claim, s Settlement) {
	cheap := cheapClaim(c)
	var err error
	switch s := s.(type) {
	case Finish:
		if s.Outcome.Kind != Succeeded {
			f.letGo(ctx, cheap)
			return
		}
		err = f.tell(ctx, cheap, s.Outcome, note{fence: c.Fence, scheme: c.Front.Scheme}, s.Retention, s.Published)
	case Published:
		s.Produced = Stubs(s.Produced)
		err = f.settleCheap(ctx, cheap, s)
	case Release:
		err = f.settleCheap(ctx, cheap, s)
	default: // a copy of the transaction has settled
		f.letGo(ctx, cheap)
	}
	if err != nil {
		f.letGo(ctx, cheap)
	}
}

func outputBytes(produced []Produced) (n int) {
	for _, p := range produced {
		n += len(p.Payload)
		for name, value := range p.Header {
			n += len(name) + len(value)
		}
	}
	return n
}

// errUntellable says that the cheap store cannot keep an outcome: it has a text where the note would be, or is too large.
var errUntellable = errors.New("dedupstore: this success is kept by the inbox alone")

// maxFrontOutputs is how many bytes of outputs the cheap store keeps until they are published: more are not worth its
// patience.
const maxFrontOutputs = 256 << 10

// tell stores a success in the cheap store, with its result and the IDs of its outputs. Those that are not published are
// kept whole: a guard that goes back to the cheap store alone would publish them without their bytes.
func (f *FrontStore) tell(ctx context.Context, c Claim, o Outcome, n note, retention time.Duration, published bool) error {
	if o.Reason != "" || !published && outputBytes(o.Produced) > maxFrontOutputs {
		return errUntellable
	}
	if published {
		o.Produced = Stubs(o.Produced)
	}
	o.Reason = n.String()
	return f.settleCheap(ctx, c, Finish{Outcome: o, Retention: retention, Published: published})
}

// giveUp ends the cheap lease of a claim that the inbox does not know any more.
func (f *FrontStore) giveUp(ctx context.Context, c Claim, err error) {
	if c.Front.Fence != 0 && errors.Is(err, ErrClaimLost) {
		f.letGo(ctx, cheapClaim(c))
	}
}

// letGoLease is what remains of a lease that is given up: the least there is.
const letGoLease = time.Millisecond

// letGo ends the lease of a cheap claim, so that the next one is granted and asks the inbox. A Release would make the
// cheap store take what the same owner asks again for a late copy.
func (f *FrontStore) letGo(ctx context.Context, c Claim) { _ = f.extendLease(ctx, c, letGoLease) }

func (f *FrontStore) extendCheap(ctx context.Context, c Claim, lease time.Duration) error {
	return f.extendLease(ctx, cheapClaim(c), lease)
}

func (f *FrontStore) extendLease(ctx context.Context, c Claim, lease time.Duration) error {
	return f.do(ctx, &c.Key, minFrontPatience, func(ctx context.Context) error { return f.cheap.Extend(ctx, c, lease) })
}

// settleCheap settles in the cheap store. Duplicates would wait for a lease if that failed: so it is tried again, once.
func (f *FrontStore) settleCheap(ctx context.Context, c Claim, s Settlement) error {
	settle := func(ctx context.Context) error { return f.cheap.Settle(ctx, c, s) }
	err := f.do(ctx, &c.Key, minFrontPatience, settle)
	if !frontAnswered(err) && !errors.Is(err, errFrontShut) {
		err = f.do(ctx, &c.Key, minFrontPatience, settle)
	}
	return err
}
