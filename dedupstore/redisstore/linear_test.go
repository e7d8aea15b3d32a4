package redisstore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/lineartest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

const (
	linearWorkers   = 5
	linearOps       = 40 // a worker with a client of its own
	linearSharedOps = 24 // a worker that shares one: there is more to check
	linearDropEvery = 14 // one of so many replies is dropped: 7 %
)

// history lets the workers run operations on a few keys at once, and returns what they saw. Each has a store and a
// client of its own, or all share one, and their operations travel together, as an engine's do.
func (r *rig) history(t *testing.T, seed uint64, broken scripts, shared, plain bool) []porcupine.Operation {
	t.Helper()
	prefix := "linear-" + ids.New()
	r.proxy.Inject(r.faults(seed))
	var mu sync.Mutex
	var history []porcupine.Operation
	pool := lineartest.Pool{Group: "billing"}
	var group sync.WaitGroup
	begin := time.Now()
	stores := make([]dedupstore.Store, linearWorkers)
	for w := range linearWorkers {
		if w > 0 && shared {
			stores[w] = stores[0]
			continue
		}
		s := must(New(r.clients[w], Config{Prefix: prefix, SkipCheck: true}))(t)
		s.scripts = broken
		s.plain.Store(plain)
		if stores[w] = s; shared {
			stores[w] = together(s)
		}
	}
	for w, s := range stores {
		sent := r.sent[w]
		if shared {
			sent = r.sent[0]
		}
		rnd := rand.New(rand.NewPCG(seed, uint64(w)+2))
		group.Go(func() {
			for range opsOf(shared) {
				in := pool.Draw(rnd)
				before, faults := sent.len(), r.faulty()
				call := time.Since(begin).Nanoseconds()
				out := perform(t, s, in, &pool)
				end := time.Since(begin).Nanoseconds()
				if out.Unheard {
					end = math.MaxInt64
				}
				mu.Lock()
				history = append(history,
					porcupine.Operation{ClientId: w, Input: in, Call: call, Output: out, Return: end})
				// What was sent for the owner before the request that was answered: after a fault, or when the client
				// took the machine's slowness for one. It may be another worker's, who uses the same claim.
				again := int64(sent.of(in.Owner, before) - 1)
				if time.Duration(end-call) < linearTimeout {
					again = min(again, r.faulty()-faults)
				}
				for range again {
					history = append(history, porcupine.Operation{
						ClientId: w, Input: in, Call: call,
						Output: lineartest.Output{Unheard: true}, Return: math.MaxInt64,
					})
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	r.proxy.Inject(nil)
	return history
}

// perform makes the operation. After an error nobody knows what happened.
func perform(t *testing.T, s dedupstore.Store, in lineartest.Input, pool *lineartest.Pool) lineartest.Output {
	out, err := pool.Perform(t.Context(), s, in)
	unheard(t, err)
	if out.Wait > lineartest.Lease+maxSampleError {
		t.Errorf("wait is %v, longer than any lease", out.Wait)
	}
	return out
}

// unheard fails the test for errors that are not of the network.
func unheard(t *testing.T, err error) {
	var record *dedupstore.RecordError
	var refused redis.Error
	if errors.As(err, &record) || errors.As(err, &refused) {
		t.Errorf("not an error of the network: %v", err)
	}
}

func opsOf(shared bool) int {
	if shared {
		return linearSharedOps
	}
	return linearOps
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
	histories := 8
	if proof {
		histories = 200
	}
	seed := rand.Uint64()
	classes := map[string]int{}
	operationsRun, unanswered, illegal, undecided := 0, 0, 0, 0
	for i := range histories {
		dropped := r.proxy.Dropped()
		history := r.history(t, seed+uint64(i), allScripts, shared, plain)
		if r.proxy.Dropped() == dropped {
			t.Errorf("history %d: no reply was dropped", i)
		}
		operationsRun += linearWorkers * opsOf(shared)
		unanswered += len(history) - linearWorkers*opsOf(shared)
		for _, op := range history {
			classes[op.Output.(lineartest.Output).Class]++
		}
		switch result := porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute); result {
		case porcupine.Unknown: // so much was unheard that all orders cannot be tried
			undecided++
			t.Logf("history %d (seed %d) is undecided after a minute", i, seed+uint64(i))
		case porcupine.Illegal:
			illegal++
			t.Errorf("history %d (seed %d) is %s", i, seed+uint64(i), result)
		}
	}
	if undecided > 1+histories/50 {
		t.Errorf("%d of %d histories are undecided", undecided, histories)
	}
	scripts, dropped := int(r.scripts.Load()), r.proxy.Dropped()
	t.Logf("seed %d: %d histories, %d operations, %d illegal, %d undecided; %d requests, %d replies dropped "+
		"(%.1f %%), %d delayed, %d requests held, %d executions unheard; answers %v",
		seed, histories, operationsRun, illegal, undecided, scripts, dropped, 100*float64(dropped)/float64(scripts),
		r.proxy.Delayed(), r.proxy.Frozen(), unanswered, classes)
	if dropped*100 < scripts*5 {
		t.Errorf("%d of %d replies were dropped, want at least 5 %%", dropped, scripts)
	}
	if some, all := r.sent[0].together(); shared && some*4 < all {
		t.Errorf("%d of %d commands travelled with others: pipelines were hardly shared", some, all)
	} else if shared {
		t.Logf("%d of %d commands travelled with others", some, all)
	}
	for _, class := range []dedupstore.Status{
		dedupstore.AcquiredRun, dedupstore.AcquiredPublish, dedupstore.Busy, dedupstore.Done, dedupstore.Mismatch,
	} {
		if classes[string(class)] == 0 {
			t.Errorf("no claim was answered %s", class)
		}
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
			for i := range 60 {
				history := r.history(t, rand.Uint64(), broken, i%2 == 1, i%4 > 1)
				if porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) == porcupine.Illegal {
					t.Logf("found out by history %d", i+1)
					return
				}
			}
			t.Error("60 histories look linearizable")
		})
	}
}

// A finish that replaces whatever is there is found out as well.
func TestLinearizable_UnconditionalFinishIsFoundOut(t *testing.T) {
	r := newConditionalRig(t, &byScript{always: true})
	for i := range 200 { // few settle what changed hands without a word to their store
		history := r.history(t, rand.Uint64(), allScripts, false, i%2 == 0)
		if porcupine.CheckOperationsTimeout(lineartest.Model(), history, time.Minute) == porcupine.Illegal {
			t.Logf("found out by history %d", i+1)
			return
		}
	}
	t.Error("200 histories look linearizable")
}
