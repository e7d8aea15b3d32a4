package storetest

import "github.com/oncemill/oncemill/dedupstore"

// extendMany extends and wants as many errors, nil or not.
func (k *kit) extendMany(extensions ...dedupstore.Extension) []error {
	k.Helper()
	errs := k.Store.Extend(k.Context(), extensions)
	if len(errs) != len(extensions) {
		k.Fatalf("Extend of %d leases returned %d errors", len(extensions), len(errs))
	}
	return errs
}

var batchExtendCases = []testCase{
	{
		name: "batch/extends-each-as-it-is-asked",
		why:  "heartbeats of many handlers travel together, and each has to reach its own record",
		test: func(k *kit) {
			claim := func(id string) dedupstore.Claim { return k.claim(k.brief(id), dedupstore.AcquiredRun).Claim }
			waiting, working, ending := claim("waiting"), claim("working"), k.run("ending")
			for i, err := range k.extendMany(
				dedupstore.Extension{Claim: waiting, Lease: 2 * short},
				dedupstore.Extension{Claim: working, Lease: long, Started: true},
				dedupstore.Extension{Claim: ending, Lease: short, Started: true},
			) {
				if err != nil {
					k.Errorf("extension %d: %v", i, err)
				}
			}
			k.pass(2 * short)
			k.claim(k.request("working"), dedupstore.Busy)
			parks := func(id string) dedupstore.Request {
				r := k.request(id)
				r.ParkExpired = true
				return r
			}
			k.attempt(k.claim(parks("waiting"), dedupstore.AcquiredRun), 2)
			k.claim(parks("ending"), dedupstore.AcquiredPublish)
		},
	},
	{
		name: "batch/errors-are-of-one-extension",
		why:  "a lost claim among many must cancel its own handler, and none of the others",
		test: func(k *kit) {
			zombie := k.crashed("lost")
			k.run("lost")
			first, last := k.claim(k.brief("first"), dedupstore.AcquiredRun).Claim, k.run("last")
			bad := last
			bad.Owner = ""
			errs := k.extendMany(
				dedupstore.Extension{Claim: first, Lease: long, Started: true},
				dedupstore.Extension{Claim: zombie, Lease: long, Started: true},
				dedupstore.Extension{Claim: bad, Lease: long, Started: true},
				dedupstore.Extension{Claim: last, Lease: long, Started: true},
			)
			if errs[0] != nil || errs[3] != nil {
				k.Errorf("extensions beside a lost one: %v, %v", errs[0], errs[3])
			}
			k.lost(errs[1], "extension of a lost claim among others")
			k.invalid(errs[2], "Claim.Owner", "extend")
			k.pass(short)
			k.claim(k.request("first"), dedupstore.Busy)
			k.claim(k.request("last"), dedupstore.Busy)
		},
	},
}
