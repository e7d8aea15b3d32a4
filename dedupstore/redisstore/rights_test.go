package redisstore

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestCheck_UserWithoutInfoGetsAnErrorThatNamesTheWayOut(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	least := as(t, server, "least", "-config|get")
	s := newStore(t, least)
	report := must(s.Check(t.Context()))(t)
	if !strings.Contains(report.Durability, "unknown") {
		t.Errorf("without CONFIG GET the durability is %q", report.Durability)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)

	blind := as(t, server, "blind", "-info")
	_, err := dedupstore.ClaimOne(t.Context(), newStore(t, blind), request("2"))
	var refused *dedupstore.SetupError
	if !errors.As(err, &refused) || !strings.Contains(refused.Problem, "INFO") || !strings.Contains(err.Error(), "Config.SkipCheck") {
		t.Errorf("error is %v, want a SetupError for INFO", err)
	}
	unchecked := must(New(blind, Config{Prefix: "test-blind", SkipCheck: true}))(t)
	claim(t, unchecked, request("2"), dedupstore.AcquiredRun)
}

// A server that refuses the connections of a client says why, and so do the errors of claims, and of Check.
func TestStore_PasswordThatWasChangedIsSaid(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	rdb := as(t, server, "app")
	s := newStore(t, rdb)
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	admin := server.Client()
	if err := admin.ACLSetUser(t.Context(), "app", "resetpass", ">other").Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.ClientKillByFilter(t.Context(), "USER", "app").Err(); err != nil {
		t.Fatal(err)
	}
	for _, result := range s.Claim(t.Context(), []dedupstore.Request{request("2"), request("3")}) {
		if result.Err == nil || !strings.Contains(result.Err.Error(), "WRONGPASS") {
			t.Errorf("a claim of a batch: %v, want WRONGPASS", result.Err)
		}
	}
	if _, err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("Check: %v, want WRONGPASS", err)
	}
	if err := admin.ACLSetUser(t.Context(), "app", "resetpass", ">pw").Err(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("2"), dedupstore.AcquiredRun)
}

// as returns a client of a user who has what the package doc says that an ACL user needs, and the rules.
func as(t *testing.T, server *redistest.Server, user string, rules ...string) *redis.Client {
	t.Helper()
	doc := string(must(os.ReadFile("doc.go"))(t))
	_, needs, ok := strings.Cut(doc, "An ACL user needs")
	if !ok {
		t.Fatal("the package doc does not say what an ACL user needs")
	}
	all := slices.Concat([]string{"on", ">pw", "~test-*"}, regexp.MustCompile(`\+[@a-z|]+`).FindAllString(needs, -1), rules)
	if err := server.Client().ACLSetUser(t.Context(), user, all...).Err(); err != nil {
		t.Fatal(err)
	}
	o := server.Options()
	o.Username, o.Password = user, "pw"
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func TestStore_UserWithTheDocumentedRightsCanDoEverything(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	admin := server.Client()
	s := newStore(t, as(t, server, "documented"))
	r := request("1")
	a := claim(t, s, r, dedupstore.AcquiredRun)
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a.Claim, Lease: time.Minute, Started: true}); err != nil {
		t.Error(err)
	}
	settle(t, s, a.Claim, dedupstore.Release{Uncounted: true, Reason: "shutdown"})
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	expire(t, s, admin, r.Key)
	spent := request("1")
	spent.MaxAttempts, spent.Trace = 1, ""
	a = claim(t, s, spent, dedupstore.AcquiredPublish)
	settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour, Produced: []dedupstore.Produced{{ID: "dead-1"}}})
	again := request("1")
	again.Rerun, again.Trace = a.Fence, ""
	a = claim(t, s, again, dedupstore.AcquiredRun)
	settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true}, dedupstore.Produced{ID: "1"}))
	expire(t, s, admin, r.Key)
	a = claim(t, s, request("1"), dedupstore.AcquiredPublish)
	settle(t, s, a.Claim, dedupstore.Published{Retention: time.Hour})
	claim(t, s, request("1"), dedupstore.Done)

	taken := claim(t, s, request("taken"), dedupstore.AcquiredRun).Claim
	settle(t, s, taken, dedupstore.Release{})
	claim(t, s, request("taken"), dedupstore.AcquiredRun)
	if err := dedupstore.SettleOne(t.Context(), s, taken, succeeded("")); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("error is %v, want ErrClaimLost", err)
	}

	noted := []dedupstore.Duplicates{{Key: taken.Key, Count: 1, Last: time.Now(), Retention: time.Hour}}
	if err := s.NoteDuplicates(t.Context(), noted); err != nil {
		t.Error(err)
	}
	if seen := lookAt(t, s, taken.Key); seen.Duplicates != 1 {
		t.Errorf("after a duplicate the record looks like %+v", seen)
	}
	if err := claimtest.NoteScope(t.Context(), s); err != nil {
		t.Error(err)
	}
	left, err := admin.PTTL(t.Context(), s.scopesName("acme", "scopes")).Result()
	if err != nil || left < 399*24*time.Hour {
		t.Errorf("what is remembered of scopes lives for %v, error %v, want 400 days", left, err)
	}
	parked := dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Unknown}}
	settle(t, s, claim(t, s, request("parked"), dedupstore.AcquiredRun).Claim, parked)
	change(t, s, key("parked"), happened)
	settle(t, s, claim(t, s, request("failed"), dedupstore.AcquiredRun).Claim, failed())
	change(t, s, key("failed"), dedupstore.Rerun{})
	change(t, s, key("failed"), dedupstore.Forget{})
	if found, _ := everyPage(t, s, dedupstore.Filter{States: []dedupstore.State{dedupstore.Finished}}); len(found) != 2 {
		t.Errorf("the list has %+v", found)
	}
	if counted := everyTally(t, s, dedupstore.Filter{}); len(counted) != 3 { // running, failed, and succeeded
		t.Errorf("%+v are counted", counted)
	}

	foreign := request("foreign")
	if err := admin.Set(t.Context(), s.name(foreign.Key), "x", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	var unreadable *dedupstore.RecordError
	if _, err := dedupstore.ClaimOne(t.Context(), s, foreign); !errors.As(err, &unreadable) {
		t.Errorf("error is %v, want a RecordError", err)
	}
}

// SET alone would still make claims, of one message after the other, whose effects could not be recorded.
func TestStore_UserWhoMayRunNoScriptsAnyMoreIsGrantedNothing(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	s := newStore(t, as(t, server, "narrowed"))
	plainly(t, s)
	first := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	may := func(rule string) {
		t.Helper()
		if err := server.Client().ACLSetUser(t.Context(), "narrowed", rule).Err(); err != nil {
			t.Fatal(err)
		}
	}
	may("-evalsha")
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: first, Lease: time.Minute, Started: true}); !redis.IsPermissionError(err) {
		t.Errorf("error of an extension is %v, want what Redis says", err)
	}
	if a, err := dedupstore.ClaimOne(t.Context(), s, request("2")); !redis.IsPermissionError(err) {
		t.Errorf("a claim that could not be settled was answered %q, %v", a.Status, err)
	}
	must(s.Check(t.Context()))(t) // which an application may make now and then
	if a, err := dedupstore.ClaimOne(t.Context(), s, request("3")); !redis.IsPermissionError(err) {
		t.Errorf("a claim that could not be settled was answered %q after a Check, %v", a.Status, err)
	}
	may("+evalsha")
	settle(t, s, first, succeeded(""))
	claim(t, s, request("2"), dedupstore.AcquiredRun)
	if s.barred.Load() {
		t.Error("claims stay what costs more, although scripts are allowed again")
	}
}

// Without GET or PSETEX new messages would be claimed all the same, and each would run a second time when the command is given back.
func TestCheck_RefusesAUserOrAServerThatCannotStoreOutcomes(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	refused := func(s *Store, setting string) {
		t.Helper()
		var unfit *dedupstore.SetupError
		if _, err := s.Check(t.Context()); !errors.As(err, &unfit) || !strings.Contains(unfit.Problem, "refuses "+setting+",") {
			t.Errorf("error is %v, want a SetupError for %s", err, setting)
		}
	}
	for _, c := range []string{"GET", "PSETEX", "PEXPIRE", "PTTL", "TYPE", "EVAL"} {
		refused(newStore(t, as(t, server, "without-"+c, "-"+strings.ToLower(c))), c)
	}
	refused(newStore(t, redistest.Start(t, "--rename-command", "PSETEX", "").Client()), "PSETEX")
	refused(must(New(as(t, server, "other-keys"), Config{Prefix: "elsewhere"}))(t), "EVAL") // to the key
}

func TestCheck_RefusalsThatPassAreNoMissingRights(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	admin, s := server.Client(), newStore(t, as(t, server, "full"))
	check := func(what string) {
		t.Helper()
		if _, err := s.Check(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n := admin.DBSize(t.Context()).Val(); n > 1 { // the key may not have expired
			t.Errorf("%s: %d keys are left", what, n)
		}
	}
	for setting, values := range map[string][2]string{"maxmemory": {"1", "0"}, "min-replicas-to-write": {"1", "0"}} {
		for _, value := range values {
			if err := admin.ConfigSet(t.Context(), setting, value).Err(); err != nil {
				t.Fatal(err)
			}
			check(setting + " " + value)
		}
	}
	if err := admin.Do(t.Context(), "CLIENT", "PAUSE", 50, "WRITE").Err(); err != nil {
		t.Fatal(err)
	}
	check("paused")
}
