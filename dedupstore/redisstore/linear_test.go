package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

const (
	linearSharedOps = 24 // of a worker that shares a client: there is more to check
	linearDropEvery = 14 // one of so many replies is dropped: 7 %
)

// history lets the workers run operations on a few keys at once, and returns what they saw. Each has a store and a
// client of its own, or all share one, and their operations travel together, as an engine's do.
func (r *rig) history(t *testing.T, seed uint64, broken scripts, shared, plain bool) lineartest.History {
	t.Helper()
	prefix := "linear-" + ids.New()
	r.proxy.Inject(r.faults(seed))
	defer r.proxy.Inject(nil)
	crowd := lineartest.Crowd{Network: func(err error) bool {
		_, record := errors.AsType[*dedupstore.RecordError](err)
		_, refused := errors.AsType[redis.Error](err)
		return !record && !refused
	}}
	for w := range lineartest.Workers {
		if w > 0 && shared {
			crowd.Stores = append(crowd.Stores, crowd.Stores[0])
			continue
		}
		s := must(New(r.clients[w], Config{Prefix: prefix, SkipCheck: true}))(t)
		s.scripts = broken
		s.plain.Store(plain)
		if shared {
			crowd.Stores, crowd.Ops = append(crowd.Stores, together(s)), linearSharedOps
		} else {
			crowd.Stores = append(crowd.Stores, s)
		}
	}
	// What was sent for the owner before the request that was answered: after a fault, or when the client took the
	// machine's slowness for one. It may be another worker's, who uses the same claim.
	crowd.Again = func(w int, owner string) func(time.Duration) int {
		if shared {
			w = 0
		}
		before, faults := r.sent[w].len(), r.faulty()
		return func(took time.Duration) int {
			again := r.sent[w].of(owner, before) - 1
			if took < linearTimeout {
				again = min(again, r.faulty()-faults)
			}
			return again
		}
	}
	history := crowd.History(t, seed)
	for _, op := range history {
		if wait := op.Output.(lineartest.Output).Wait; wait > lineartest.Lease+maxSampleError {
			t.Errorf("wait is %v, longer than any lease", wait)
		}
	}
	return history
}

// TestLinearizable_WithLostAndDelayedReplies runs 8 histories of each kind, and 200 with ONCEMILL_PROOF=1.
func TestLinearizable_WithLostAndDelayedReplies(t *testing.T) {
	t.Run("lone callers", func(t *testing.T) { linearizable(t, newRig(t, ownServer(t)), false, false) })
	t.Run("shared pipelines", func(t *testing.T) { linearizable(t, newRig(t, ownServer(t)), true, false) })
	t.Run("plain claims", func(t *testing.T) { linearizable(t, newRig(t, ownServer(t)), false, true) })
	t.Run("plain claims in shared pipelines",
		func(t *testing.T) { linearizable(t, newRig(t, ownServer(t)), true, true) })
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("conditional finishes, shared ", shared), func(t *testing.T) {
			linearizable(t, newConditionalRig(t, new(byScript)), shared, true)
		})
		t.Run(fmt.Sprint("conditional finishes on Valkey, shared ", shared), func(t *testing.T) {
			linearizable(t, newRig(t, redistest.StartValkey(t)), shared, true)
		})
	}
}

// newConditionalRig returns one whose clients have a hook.
func newConditionalRig(t *testing.T, hook redis.Hook) *rig {
	t.Helper()
	r := newRig(t, ownServer(t))
	for _, rdb := range r.clients {
		rdb.AddHook(hook)
	}
	return r
}

func linearizable(t *testing.T, r *rig, shared, plain bool) {
	lineartest.Linearizable(t, 8, r.proxy, func(seed uint64) lineartest.History {
		dropped := r.proxy.Dropped()
		history := r.history(t, seed, allScripts, shared, plain)
		if r.proxy.Dropped() == dropped {
			t.Errorf("seed %d: no reply was dropped", seed)
		}
		return history
	})
	scripts, dropped := int(r.scripts.Load()), r.proxy.Dropped()
	t.Logf("%d of %d replies dropped (%.1f %%), %d requests held", dropped, scripts,
		100*float64(dropped)/float64(scripts), r.proxy.Frozen())
	if dropped*100 < scripts*5 {
		t.Errorf("%d of %d replies were dropped, want at least 5 %%", dropped, scripts)
	}
	if some, all := r.sent[0].together(); shared && some*4 < all {
		t.Errorf("%d of %d commands travelled with others: pipelines were hardly shared", some, all)
	} else if shared {
		t.Logf("%d of %d commands travelled with others", some, all)
	}
}

// A checker that cannot fail proves nothing: each of these scripts breaks one rule, and is found out.
func TestLinearizable_BrokenScriptsAreFoundOut(t *testing.T) {
	r := newRig(t, ownServer(t))
	for name, test := range map[string]struct {
		script   *script
		old, new string
	}{
		"claim that is not idempotent": {claimScript, "if rec.owner == owner and (running or publishing) then",
			"if rec.owner == owner and publishing then"},
		"claim of what is there": {claimScript, "'NX', 'PX'", "'PX'"},
		"claim of a live lease":  {claimScript, "or now < rec.ends or now < rec.due", "or now < rec.due"},
		"claim before it is due": {claimScript, "or now < rec.ends or now < rec.due", "or now < rec.ends"},
		"late claim that counts": {claimScript, "if settled(rec, owner) or", "if"},
		"fence that stands still": {claimScript, "math.max(tonumber(rec.fence) + 1, now)",
			"math.max(tonumber(rec.fence), 1)"},
		"attempts without end": {claimScript, "if rec.attempts >= most then", "if false then"},
		"finish by anybody":    {finishScript, "if not held(rec, string.sub(ARGV[1], 4, 27)) or", "if not rec or"},
		"release that forgets attempts": {releaseScript, "rec.state, rec.l, rec.L = 'T', nil, nil",
			"rec.state, rec.l, rec.L, rec.a = 'T', nil, nil, '0000000000'"},
		"release by anybody":   {releaseScript, "if not held(rec, string.sub(ARGV[1], 1, 24)) or", "if not rec or"},
		"extend by anybody":    {extendScript, "if not held(rec, string.sub(ARGV[1], 1, -2)) or", "if not rec or"},
		"published by anybody": {publishedScript, "if not held(rec, string.sub(ARGV[1], 1, 24)) or", "if not rec or"},
	} {
		t.Run(name, func(t *testing.T) {
			source := test.script.source
			if strings.Count(source, test.old) != 1 {
				t.Fatalf("the script does not contain %q once", test.old)
			}
			broken := allScripts
			for _, s := range [...]**script{
				&broken.claim, &broken.extend, &broken.finish, &broken.release, &broken.published,
			} {
				if *s == test.script {
					*s = scriptOf(name, strings.Replace(source, test.old, test.new, 1))
				}
			}
			lineartest.FoundOut(t, 300, func(seed uint64) lineartest.History {
				return r.history(t, seed, broken, seed%2 == 1, seed%4 > 1)
			})
		})
	}
}

// A finish that replaces whatever is there is found out as well.
func TestLinearizable_UnconditionalFinishIsFoundOut(t *testing.T) {
	r := newConditionalRig(t, &byScript{always: true})
	// Few settle what changed hands without a word to their store.
	lineartest.FoundOut(t, 200, func(seed uint64) lineartest.History {
		return r.history(t, seed, allScripts, false, seed%2 == 0)
	})
}
