package sim

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A bug is a change to production code after which a promise does not hold. A rebuild ports it: what breaks stays, the
// text changes.
type bug struct {
	breaks   string
	file     string // below the root
	from, to string // from is there once
}

var bugs = []bug{
	{
		"a settlement compares neither owner nor fence", "dedupstore/stored.go",
		"return s.Owner == c.Owner && s.Fence == c.Fence }", "return c.Owner != \"\" }",
	},
	{
		"a renewal does not ask whose the claim is", "dedupstore/stored.go",
		"if !s.ownedBy(x.Claim) || s.State != Running", "if s.State != Running",
	},
	{
		"a renewal does not move the end of the lease", "dedupstore/stored.go",
		"	s.Lease = now.Add(x.Lease)\n	s.Expires", "	s.Expires",
	},
	{
		"a busy record is taken for free", "dedupstore/stored.go",
		", now.Before(s.Lease), now.Before(s.Due):", ", now.Before(s.Due):",
	},
	{
		"a retry is granted before it is due", "dedupstore/stored.go",
		", now.Before(s.Lease), now.Before(s.Due):", ", now.Before(s.Lease):",
	},
	{
		"a late copy of a claim is granted after its owner has settled", "dedupstore/stored.go",
		"case slices.Contains(s.Settled, r.Owner), now.Before", "case now.Before",
	},
	{
		"a stored failure runs again whatever fence the rerun names", "dedupstore/stored.go",
		"r.Rerun == 0 || r.Rerun != s.Decided || s.Outcome", "r.Rerun == 0 || s.Outcome",
	},
	{
		"a success runs again on request", "dedupstore/stored.go",
		" || s.Outcome.Kind == Succeeded {\n			return Done", " {\n			return Done",
	},
	{
		"a rerun does not begin the attempts anew", "dedupstore/stored.go",
		"		s.again()\n		return s.run(r, now)", "		return s.run(r, now)",
	},
	{
		"a crash counts as no attempt", "dedupstore/stored.go",
		"	s.Attempts++\n", "	if s.crashed() == 0 {\n		s.Attempts++\n	}\n",
	},
	{
		"one attempt more than MaxAttempts", "dedupstore/stored.go",
		"case s.Attempts >= r.MaxAttempts:", "case s.Attempts > r.MaxAttempts:",
	},
	{
		"an interrupted run keeps its attempt", "dedupstore/stored.go",
		"		s.Attempts--\n", "",
	},
	{
		"a started run is taken over by a policy that parks", "dedupstore/stored.go",
		"case s.State == Running && s.Started && r.ParkExpired:",
		"case s.State == Running && s.Started && r.ParkExpired && false:",
	},
	{
		"crashes in a row are not counted", "dedupstore/stored.go",
		"	s.Crashes = s.crashed()\n", "",
	},
	{
		"a fence follows the clock alone", "dedupstore/stored.go",
		"s.Fence = max(s.Fence+1, uint64(max(now.UnixMicro(), 0)))", "s.Fence = uint64(max(now.UnixMicro(), 0))",
	},
	{
		"an outcome whose outputs are not published is done", "dedupstore/stored.go",
		"	case s.State == Publishing:\n		s.own(r, now)\n		return AcquiredPublish",
		"	case s.State == Publishing:\n		return Done",
	},
	{
		"an ack before the store's answer", "start.go",
		"		l := &r.lease\n		l.shard.settles.Go(",
		"		l := &r.lease\n		r.owner.ended(r, e.res, nil)\n		r.owner = &waiting{}\n		l.shard.settles.Go(",
	},
	{
		"a run is not marked as started under a policy that parks", "attempt.go",
		"err := g.renew(ctx, l, g.policy.ExpiredLease == Park)", "err := g.renew(ctx, l, false)",
	},
	{
		"a store that is down is bypassed by a policy that fails closed", "claim.go",
		"if g.policy.StoreDown == FailOpen && !refuses", "if !refuses",
	},
	{
		"outputs go out although their outcome could not be stored", "settle.go",
		"	default:\n		return r.unfinished(ctx, e.res.Handler, err)\n	}", "	}",
	},
	{
		"an outcome is kept for the lease instead of the window", "attempt.go",
		"	finish := dedupstore.Finish{Outcome: o, Retention: g.window(r.call, o), Took: took}",
		"	finish := dedupstore.Finish{Outcome: o, Retention: g.policy.Lease, Took: took}",
	},
	{
		"a permanent failure is tried again", "verdict.go",
		"	case permanent:\n		return verdict{outcome: o}\n", "",
	},
	{
		"a batch's first error steers all", "batch.go",
		"			cause = errs[n]", "			cause = errs[n*0]",
	},
	{
		"a batch that fails as a whole costs an attempt", "batch.go",
		"if err != nil && g.policy.ExpiredLease != Park {",
		"if err != nil && g.policy.ExpiredLease != Park && len(which) < 2 {",
	},
	{
		"a batch that failed is repeated under a policy that parks", "batch.go",
		"if err != nil && g.policy.ExpiredLease != Park {", "if err != nil {",
	},
	{
		"suspects run side by side", "guard.go",
		"turns: make(chan struct{}, 1),", "turns: make(chan struct{}, 100),",
	},
	{
		"a zombie acks", "consumer/processor.go",
		"		decision.Action = Leave", "		decision.Action = Ack",
	},
	{
		"an ack although the dead letter is not published", "consumer/deadletter.go",
		"publication.Messages()); err != nil {", "publication.Messages()); err != nil && false {",
	},
	{
		"a dead letter gets another ID each time", "consumer/deadletter.go",
		"		strconv.FormatUint(fence, 10))\n	letter", "		time.Now().String())\n	letter",
	},
	{
		"a mismatch is acked without a dead letter", "consumer/inbound.go",
		"if decision = p.undeliverable(ctx, *d, call.Key.ID, outcomeMismatch, err); decision.Result.Status == 0 {",
		"if decision = (Decision{Action: Ack, Err: err}); false {",
	},
	{
		"nobody publishes what a dead process left", "claim.go",
		"	case dedupstore.AcquiredPublish:\n		return r.known",
		"	case dedupstore.AcquiredPublish + \"!\":\n		return r.known",
	},
	{
		"a store that was down is never asked again", "breaker.go",
		"	if wait := time.Until(b.next); wait > 0 {", "	if wait := time.Second; wait > 0 {",
	},
	{
		"a commit without an answer is taken for a failure", "inbox.go",
		"	case unknown:\n", "	case unknown && w.calls == 0:\n",
	},
	{
		"a row without an answer counts as refused", "outbox/publish.go",
		"	case a.unknown:\n		result.State = Unknown\n", "",
	},
	{
		"a row that was refused is noted as published", "outbox/publish.go",
		"		result.State = Failed", "		result.State = Published",
	},
	{
		"rows of one order key go out in one wave", "outbox/publish.go",
		"		case taken[row.OrderKey]:", "		case taken[row.OrderKey] && len(rows) == 0:",
	},
	{
		"a key goes on after a row that was not acknowledged", "outbox/publish.go",
		"		case stopped[row.OrderKey]:\n", "",
	},
}

const root = "../.."

// change returns the file with the bug.
func (b bug) change(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), b.from); n != 1 {
		t.Fatalf("%s: %s has %d times, want once:\n%s", b.breaks, b.file, n, b.from)
	}
	return strings.Replace(string(text), b.from, b.to, 1)
}

// A change of production code that moves one of these texts has to port the bug.
func TestBugs_HaveTheirPlaces(t *testing.T) {
	t.Parallel()
	for _, b := range bugs {
		b.change(t)
	}
}

var foundAt = regexp.MustCompile(`(?m)^ *sim_test.go:\d+: (seed (\d+): .*)$`)

// The simulator finds each bug.
func TestBugs_AreFound(t *testing.T) {
	if os.Getenv("ONCEMILL_PROOF") == "" {
		t.Skip("a long proof: ONCEMILL_PROOF is not set")
	}
	only := os.Getenv("ONCEMILL_SIM_BUG")
	for i, b := range bugs {
		if only != "" && only != strconv.Itoa(i) {
			continue
		}
		t.Run(b.breaks, func(t *testing.T) {
			overlay := b.overlay(t)
			program := filepath.Join(t.TempDir(), "sim")
			build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", program, ".")
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			run := exec.CommandContext(ctx, program, "-test.run", "^TestSeeds$", "-seeds", "20000")
			out, err := run.CombinedOutput()
			found := foundAt.FindStringSubmatch(string(out))
			if err == nil || found == nil {
				t.Fatalf("not found in 20,000 seeds: %v\n%s", err, out[max(0, len(out)-2000):])
			}
			t.Log(found[1])
		})
	}
}

// overlay writes what `go test -overlay` reads.
func (b bug) overlay(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	changed, overlay := filepath.Join(folder, filepath.Base(b.file)), filepath.Join(folder, "overlay.json")
	original, err := filepath.Abs(filepath.Join(root, b.file))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{changed: []byte(b.change(t)), overlay: text} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}
