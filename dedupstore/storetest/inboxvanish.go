package storetest

import (
	"context"

	"github.com/oncemill/oncemill/dedupstore"
)

var inboxVanishCases = []inboxCase{
	{
		name: "inbox/vanished-host-holds-nothing",
		why: "a host that loses its power tells nobody: its transaction must end, or all who want what it has locked " +
			"wait for hours",
		needs: func(s InboxSubject) bool { return s.Vanish != nil },
		test: func(k *inboxKit) {
			c := k.claim(k.brief("1"), dedupstore.AcquiredRun).Claim
			err := dedupstore.InTxOne(k.Context(), k.in.Inbox, c,
				func(ctx context.Context) (dedupstore.Settlement, error) {
					s, err := k.charge(c)(ctx)
					bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.in.VanishWithin)
					defer cancel()
					if err := k.in.Vanish(bounded); err != nil {
						k.Errorf("after %v its lock is not free: %v", k.in.VanishWithin, err)
					}
					return s, err
				})
			if err == nil {
				k.Error("a transaction whose host has vanished returned nil")
			}
			k.effects(c, 0)
			next := k.claim(k.request("1"), dedupstore.AcquiredRun).Claim
			k.commits(next, k.charge(next))
			k.effects(c, 1)
		},
	},
}
