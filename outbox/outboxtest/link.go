package outboxtest

import (
	"context"
	"time"

	"github.com/oncemill/oncemill/outbox"
)

// shortest is how long an operation over a link may take at first.
const shortest = 250 * time.Millisecond

// link returns the store as another host has it, or ends the case without a failure.
func (k *kit) link() (outbox.Store, Link) {
	k.Helper()
	if k.Far == nil {
		k.Skip("skipped: Subject.Far is not set")
	}
	return k.Far()
}

// An operation is one of a store, which prepare has given something to do.
type operation struct {
	name    string
	prepare func()
	run     func(ctx context.Context) error
}

// operations are those of a store that is far. Each works on a new row.
func (k *kit) operations(far outbox.Store) []operation {
	var id, token string
	written := func() {
		id = newToken()
		k.writeIDs(id)
	}
	leased := func() leased {
		written()
		return k.lease()
	}
	settled := func(state outbox.State) func() {
		return func() { k.settleAll(leased(), outbox.Result{State: state}) }
	}
	all := []operation{
		{"Lease", written, func(ctx context.Context) error {
			_, err := far.Lease(ctx, outbox.LeaseRequest{Token: newToken(), Limit: 10, Lease: short})
			return err
		}},
		{"Settle", func() { token = leased().token }, func(ctx context.Context) error {
			return far.Settle(ctx, token, nil)
		}},
		{"Clean", settled(outbox.Published), func(ctx context.Context) error {
			_, err := far.Clean(ctx, 0, 10)
			return err
		}},
	}
	if i, ok := far.(outbox.Inspector); ok {
		all = append(all, operation{"Requeue", settled(outbox.Dead), func(ctx context.Context) error {
			_, err := i.Requeue(ctx, outbox.RowInfo{ID: id})
			return err
		}}, operation{"Discard", settled(outbox.Dead), func(ctx context.Context) error {
			_, err := i.Discard(ctx, outbox.RowInfo{ID: id})
			return err
		}}, operation{"List", written, func(ctx context.Context) error {
			_, err := i.List(ctx, outbox.Filter{}, "")
			return err
		}})
	}
	if r, ok := far.(outbox.Replayer); ok {
		all = append(all, operation{"Replay", settled(outbox.Published), func(ctx context.Context) error {
			_, err := r.Replay(ctx, outbox.ReplayRequest{Before: time.Now().Add(long), Limit: 10})
			return err
		}})
	}
	return all
}

var linkCases = []testCase{
	{"link/late-answer-holds-up-nobody",
		"a relay stands still until TCP gives up a silent connection, which takes minutes", func(k *kit) {
			far, link := k.link()
			for _, o := range k.operations(far) {
				k.eachAnswer(o, link.Silence, func() {
					ctx, cancel := context.WithTimeout(k.Context(), waitLimit)
					defer cancel()
					r := outbox.LeaseRequest{Token: newToken(), Limit: 1, Lease: short}
					if _, err := far.Lease(ctx, r); err != nil {
						k.Errorf("while the answer to %s is late, another operation fails: %v", o.name, err)
					}
				})
			}
		}},
	{"link/vanished-host-keeps-no-rows", "rows that a host had when it vanished wait for hours", func(k *kit) {
		far, link := k.link()
		ids := map[string]bool{} // of rows that nobody has leased since
		lease := operation{"Lease", func() {
			for _, id := range numbered(newToken(), 3) {
				ids[id] = true
				k.writeIDs(id)
			}
		}, func(ctx context.Context) error {
			_, err := far.Lease(ctx, outbox.LeaseRequest{Token: newToken(), Limit: 10, Lease: short})
			return err
		}}
		k.eachAnswer(lease, link.Vanish, func() {
			deadline := time.Now().Add(time.Minute)
			for len(ids) > 0 {
				for _, suspects := range [...]bool{false, true} {
					ctx, cancel := context.WithTimeout(k.Context(), time.Second)
					token := newToken()
					rows, err := k.Store.Lease(ctx,
						outbox.LeaseRequest{Token: token, Limit: 100, Lease: long, Suspects: suspects})
					cancel()
					if err == nil {
						l := leased{token, rows}
						k.settleAll(l, outbox.Result{State: outbox.Removed})
						for _, id := range l.ids() {
							delete(ids, id)
						}
					}
				}
				if time.Now().After(deadline) {
					k.Fatalf("%d rows cannot be leased a minute after their host has vanished", len(ids))
				}
				<-time.After(short)
			}
		})
	}},
}

// eachAnswer runs an operation again and again. Of the first run the first answer does not arrive, of the second run
// the second one, and so on. Each time it calls meanwhile, and wants the operation to end with its context.
func (k *kit) eachAnswer(o operation, cut func(n int) <-chan struct{}, meanwhile func()) {
	k.Helper()
	const most = time.Minute
	for n, limit := 1, shortest; limit < most; {
		o.prepare()
		ctx, cancel := context.WithTimeout(k.Context(), limit)
		defer cancel()
		ended := make(chan error, 1)
		silent := cut(n)
		go func() { ended <- o.run(ctx) }()
		select {
		case err := <-ended:
			if err == nil {
				return // it needs no more answers
			}
			limit *= 2 // the machine is slow
			continue
		case <-silent:
		}
		n++
		meanwhile()
		select {
		case <-ended: //nolint:errcheck // that it ends is all that counts
		case <-time.After(waitLimit):
			k.Errorf("%s waits for an answer although its context has ended", o.name)
			select {
			case <-ended: //nolint:errcheck // as above
			case <-time.After(waitLimit):
			}
			return
		}
	}
	k.Fatalf("%s never succeeds", o.name)
}
