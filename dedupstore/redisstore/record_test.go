package redisstore

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver"
)

func TestRecord_IsReadableWithRedisCLI(t *testing.T) {
	t.Parallel()
	cli := testserver.NeedProgram(t, "redis-cli", "Debian: apt-get install redis-tools")
	server := ownServer(t)
	s := newStore(t, server.Client())
	r := request("o-17 é")
	a := claim(t, s, r, dedupstore.AcquiredRun)
	settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card refused"},
		dedupstore.Produced{ID: "d-1", Topic: "dead", Header: map[string]string{"why": "card"}, Payload: []byte("x")}))

	host, port, _ := strings.Cut(server.Addr, ":")
	out, err := exec.CommandContext(t.Context(), cli, "-h", host, "-p", port, "HGETALL", s.name(r.Key)).Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		fields[lines[i]] = lines[i+1]
	}
	for _, changing := range []string{"fence", "decided", "first", "lease", "owner", "settled"} {
		if fields[changing] == "" {
			t.Errorf("field %s is missing", changing)
		}
		delete(fields, changing)
	}
	want := map[string]string{
		"v": "1", "state": "publishing", "attempts": "1", "fingerprint": "sha256:abc", "trace": r.Trace,
		"kind": "failed", "reason": "card refused",
		"produced": `[{"id":"d-1","topic":"dead"}]`, "content": `[{"header":[["why","card"]],"payload":"eA=="}]`,
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
	if !strings.HasSuffix(s.name(r.Key), ":acme:billing:charge:o-17%20%C3%A9") {
		t.Errorf("the key is named %q", s.name(r.Key))
	}
	if enc := server.Client().ObjectEncoding(t.Context(), s.name(r.Key)).Val(); enc != "listpack" && enc != "ziplist" {
		t.Errorf("the hash is encoded as %q, want the compact encoding", enc)
	}
}

// everyOperation calls all operations on the key; none can succeed on a record that cannot be read.
func everyOperation(ctx context.Context, s dedupstore.Store, k dedupstore.Key) map[string]error {
	r := request(k.ID)
	c := dedupstore.Claim{Key: k, Owner: ids.Token(), Fence: 1, Attempt: 1, Lease: time.Minute, Retention: time.Hour}
	_, err := s.Claim(ctx, r)
	return map[string]error{
		"claim":     err,
		"extend":    s.Extend(ctx, c, time.Minute),
		"finish":    s.Settle(ctx, c, succeeded("x")),
		"release":   s.Settle(ctx, c, dedupstore.Release{}),
		"published": s.Settle(ctx, c, dedupstore.Published{Retention: time.Hour}),
	}
}

func TestRecord_ThatCannotBeReadIsNeverTouched(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for name, test := range map[string]struct {
		put  func(ctx context.Context, name string) error
		want string
	}{
		"newer version": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, "v", "2", "state", "running", "fence", "1").Err()
		}, `has version "2", this program reads version "1"`},
		"no version": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, "colour", "red").Err()
		}, `has no field "v"`},
		"unknown state": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, "v", "1", "state", "sleeping", "fence", "1").Err()
		}, `has state "sleeping"`},
		"no fence": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, "v", "1", "state", "running", "fence", "many").Err()
		}, `has fence "many"`},
		"a string": {func(ctx context.Context, name string) error {
			return rdb.Set(ctx, name, "taken", time.Hour).Err()
		}, "is a Redis string, not a hash"},
		"a list": {func(ctx context.Context, name string) error {
			return rdb.RPush(ctx, name, "taken").Err()
		}, "is a Redis list, not a hash"},
	} {
		k := key(name)
		if err := test.put(t.Context(), s.name(k)); err != nil {
			t.Fatal(err)
		}
		rdb.Expire(t.Context(), s.name(k), time.Hour)
		before := dump(t, rdb, s.name(k))
		for op, err := range everyOperation(t.Context(), s, k) {
			var unreadable *dedupstore.RecordError
			if !errors.As(err, &unreadable) || unreadable.Key != s.name(k) || unreadable.Problem != test.want {
				t.Errorf("%s: %s: error is %v, want a RecordError with %q", name, op, err, test.want)
			}
		}
		if after := dump(t, rdb, s.name(k)); after != before {
			t.Errorf("%s: the key was touched", name)
		}
	}
}

// dump is the key's value as Redis serialises it, and whether it has a time to live.
func dump(t testing.TB, rdb redis.UniversalClient, name string) string {
	t.Helper()
	value := must(rdb.Dump(t.Context(), name).Result())(t)
	if must(rdb.PTTL(t.Context(), name).Result())(t) < 0 {
		return value + " without a time to live"
	}
	return value
}

func TestRecord_HalfWrittenIsNotClaimed(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for _, field := range []string{"attempts", "first", "lease"} {
		r := request(field)
		claim(t, s, r, dedupstore.AcquiredRun)
		if err := rdb.HSet(t.Context(), s.name(r.Key), field, "?").Err(); err != nil {
			t.Fatal(err)
		}
		var unreadable *dedupstore.RecordError
		if _, err := s.Claim(t.Context(), request(field)); !errors.As(err, &unreadable) {
			t.Errorf("field %s: error is %v, want a RecordError", field, err)
		}
	}
	r := request("kind")
	settle(t, s, claim(t, s, r, dedupstore.AcquiredRun).Claim, succeeded("x"))
	if err := rdb.HSet(t.Context(), s.name(r.Key), "kind", "?").Err(); err != nil {
		t.Fatal(err)
	}
	var unreadable *dedupstore.RecordError
	if _, err := s.Claim(t.Context(), r); !errors.As(err, &unreadable) || unreadable.Problem != `has kind "?"` {
		t.Errorf("error is %v, want a RecordError for the kind", err)
	}
}

func TestRecord_WithAFieldThatCannotBeReadIsNotTakenOver(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	numbers := []string{"", "?", "-1", "1.5", "0x10", "1e3", " 7", "nan", "inf", "9007199254740991", "99999999999999999999"}
	lists := []string{"", "?", "7", "{}", "[", "[]", "[7]", `[{"id":"d-1"},{"id":"d-2"}]`}
	for field, values := range map[string][]string{
		"fence": numbers, "attempts": append(numbers, "2147483647"), "first": numbers, "lease": numbers, "due": numbers,
		"decided": numbers, "returned": append(numbers, "2147483647"),
		"kind": {"", "?"}, "exhausted": {"", "0"}, "truncated": {"", "yes"},
		"produced": append(lists, `[{"id":7}]`, `[{"id":"d-1","topic":7}]`, `[{"id":"d-1","key":{"base64":"?"}}]`),
		"content":  append(lists, `[{"payload":7}]`, `[{"payload":"eA="}]`, `[{"header":7}]`, `[{"header":[7]}]`, `[{"header":[["why"]]}]`),
	} {
		for _, value := range values {
			r := request(field + " " + value)
			a := claim(t, s, r, dedupstore.AcquiredRun)
			settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Failed}, dedupstore.Produced{ID: "d-1", Payload: []byte("x")}))
			expire(t, s, rdb, r.Key)
			if err := rdb.HSet(t.Context(), s.name(r.Key), field, value).Err(); err != nil {
				t.Fatal(err)
			}
			rdb.Expire(t.Context(), s.name(r.Key), time.Minute)
			before := dump(t, rdb, s.name(r.Key))
			var unreadable *dedupstore.RecordError
			if _, err := s.Claim(t.Context(), request(r.Key.ID)); !errors.As(err, &unreadable) {
				t.Errorf("%s %q: error is %v, want a RecordError", field, value, err)
			}
			if dump(t, rdb, s.name(r.Key)) != before || rdb.PTTL(t.Context(), s.name(r.Key)).Val() > time.Minute {
				t.Errorf("%s %q: the record was touched", field, value)
			}
		}
	}
}

func TestRecord_OfARunWithANumberThatCannotBeReadIsNotReleased(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for field, values := range map[string][]string{"attempts": {"0", "1.5", "-1"}, "returned": {"1.5", "?"}} {
		for _, value := range values {
			r := request(field + " " + value)
			a := claim(t, s, r, dedupstore.AcquiredRun)
			if err := rdb.HSet(t.Context(), s.name(r.Key), field, value).Err(); err != nil {
				t.Fatal(err)
			}
			before := dump(t, rdb, s.name(r.Key))
			var unreadable *dedupstore.RecordError
			if err := s.Settle(t.Context(), a.Claim, dedupstore.Release{Uncounted: true}); !errors.As(err, &unreadable) {
				t.Errorf("%s %q: error is %v, want a RecordError", field, value, err)
			}
			if dump(t, rdb, s.name(r.Key)) != before {
				t.Errorf("%s %q: the record was touched", field, value)
			}
		}
	}
}

func TestRecord_OutlivesItsLeaseByTheRetention(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	r := request("ttl")
	r.Lease, r.Retention = 10*time.Minute, time.Hour
	ttl := func(step string, want time.Duration) {
		t.Helper()
		got := must(rdb.PTTL(t.Context(), s.name(r.Key)).Result())(t)
		if got > want || got < want-time.Minute {
			t.Errorf("after %s the time to live is %v, want %v", step, got, want)
		}
	}
	a := claim(t, s, r, dedupstore.AcquiredRun)
	ttl("claim", 70*time.Minute)
	if err := s.Extend(t.Context(), a.Claim, 20*time.Minute); err != nil {
		t.Fatal(err)
	}
	ttl("extend", 80*time.Minute)
	settle(t, s, a.Claim, dedupstore.Release{Delay: 5 * time.Hour})
	ttl("release", 6*time.Hour)
	if err := rdb.HSet(t.Context(), s.name(r.Key), "due", "1").Err(); err != nil {
		t.Fatal(err)
	}
	a = claim(t, s, request("ttl"), dedupstore.AcquiredRun)
	ttl("claim again", 61*time.Minute)
	finish := producing(dedupstore.Outcome{Kind: dedupstore.Succeeded}, dedupstore.Produced{ID: "1"})
	finish.Retention = 24 * time.Hour
	settle(t, s, a.Claim, finish)
	ttl("finish", 24*time.Hour+time.Minute)
	settle(t, s, a.Claim, dedupstore.Published{Retention: 48 * time.Hour})
	ttl("published", 48*time.Hour)
}
