package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
)

func TestRecord_SizeIsBounded(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	r, finish := request("size"), succeeded("")
	r.Holder, finish.Took = "billing-7d9f-x2x9k:417", time.Second
	settle(t, s, claim(t, s, r, dedupstore.AcquiredRun).Claim, finish)
	if n := rdb.StrLen(t.Context(), s.name(r.Key)).Val(); n > 108 {
		t.Errorf("a finished record is %d bytes long", n)
	}
}

// everyOperation calls all operations on the key; none can succeed on a record that cannot be read.
func everyOperation(ctx context.Context, s dedupstore.Store, k dedupstore.Key) map[string]error {
	r := request(k.ID)
	c := dedupstore.Claim{Key: k, Owner: ids.Token(), Fence: 1, Attempt: 1, Lease: time.Minute, Retention: time.Hour}
	_, err := dedupstore.ClaimOne(ctx, s, r)
	return map[string]error{
		"claim":     err,
		"extend":    dedupstore.ExtendOne(ctx, s, dedupstore.Extension{Claim: c, Lease: time.Minute, Started: true}),
		"finish":    dedupstore.SettleOne(ctx, s, c, succeeded("x")),
		"release":   dedupstore.SettleOne(ctx, s, c, dedupstore.Release{}),
		"published": dedupstore.SettleOne(ctx, s, c, dedupstore.Published{Retention: time.Hour}),
	}
}

func TestRecord_ThatCannotBeReadIsNeverTouched(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	const head = "1R-1799999999999998abcdefgh"
	for value, want := range map[string]string{
		"2R-1799999999999998abcdefgh": `has version "2", this program reads version "1"`,
		"taken":                       `has version "t", this program reads version "1"`,
		"":                            `has version "", this program reads version "1"`,
		"1X-1799999999999998abcdefgh": `begins with "1X-1799999999999998"`,
		"1Rs1799999999999998abcdefgh": `begins with "1Rs1799999999999998"`,
		"1D-1799999999999998abcdefgh": `begins with "1D-1799999999999998"`,
		"1R-1799999999999 98abcdefgh": `begins with "1R-1799999999999 98"`,
		"1R-9999999999999999abcdefgh": `begins with "1R-9999999999999999"`,
		"1R-9007199254740991abcdefgh": `begins with "1R-9007199254740991"`,
		head[:26]:                     `begins with "1R-1799999999999998"`,
		head + "Z":                    `has a section "Z" that cannot be read`,
		head + "a000":                 `has a section "a" that cannot be read`,
		head + "Z0000000g":            `has a section "Z" that cannot be read`,
		head + "?00000000":            `has a section "?" that cannot be read`,
		head + "w":                    `has a section "w" that cannot be read`,
		head + "w0gx":                 `has a section "w" that cannot be read`,
		head + "w02x":                 `has a section "w" that cannot be read`,
		head + "k0000000x":            `has "0000000x" in section "k"`,
		head + "M0000000g":            `has a section "M" that cannot be read`,
		head + "a2147483647":          `has "2147483647" in section "a"`,
		head + "b9007199254740991":    `has "9007199254740991" in section "b"`,
		head + "M00000005why":         `has a section "M" that cannot be read`,
		head + "XX":                   `has a section "X" that cannot be read`,
	} {
		cannotBeRead(t, s, rdb, value, want, func(name string) error { return rdb.Set(t.Context(), name, value, time.Hour).Err() })
	}
	cannotBeRead(t, s, rdb, "a hash", "is a Redis hash, not a string", func(name string) error {
		return rdb.HSet(t.Context(), name, "v", "1").Err()
	})
	cannotBeRead(t, s, rdb, "a list", "is a Redis list, not a string", func(name string) error {
		return rdb.RPush(t.Context(), name, "taken").Err()
	})
}

func cannotBeRead(t *testing.T, s *Store, rdb redis.UniversalClient, what, want string, put func(name string) error) {
	t.Helper()
	k := key("r " + what)
	if err := put(s.name(k)); err != nil {
		t.Fatal(err)
	}
	rdb.Expire(t.Context(), s.name(k), time.Hour)
	before := dump(t, rdb, s.name(k))
	for op, err := range everyOperation(t.Context(), s, k) {
		var unreadable *dedupstore.RecordError
		if !errors.As(err, &unreadable) || unreadable.Key != s.name(k) || unreadable.Problem != want {
			t.Errorf("%q: %s: error is %v, want a RecordError with %q", what, op, err, want)
		}
	}
	if after := dump(t, rdb, s.name(k)); after != before {
		t.Errorf("%q: the key was touched", what)
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

// A plain finish does not look at what it keeps, and is not asked here.
func TestRecord_WithANumberThatCannotBeReadIsNotTouched(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for letter, size := range map[byte]int{'a': 10, 'n': 10, 'b': 16, 'e': 16, 'd': 16, 'k': 8, 'l': 16, 'L': 16} {
		for _, value := range []string{"?", "-1", "1.5", "0x10", "1e3", " 7", strings.Repeat("9", size)} {
			if letter == 'k' && value[0] == '9' {
				continue // which is the most
			}
			for len(value) < size {
				value = "0" + value
			}
			r := request(string(letter) + value)
			a := claim(t, s, r, dedupstore.AcquiredRun)
			edit(t, s, rdb, r.Key, func(rec *record) {
				if letter == 'l' {
					delete(rec.sections, 'L')
				}
				rec.sections[letter] = value
			})
			before := dump(t, rdb, s.name(r.Key))
			_, err := dedupstore.ClaimOne(t.Context(), s, request(r.Key.ID))
			results := map[string]error{
				"claim": err, "extend": dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a.Claim, Lease: time.Minute, Started: true}),
				"release": dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Release{Uncounted: true}),
			}
			for what, err := range results {
				var unreadable *dedupstore.RecordError
				if !errors.As(err, &unreadable) {
					t.Errorf("section %q of %q: %s: error is %v, want a RecordError", letter, value, what, err)
				}
			}
			if dump(t, rdb, s.name(r.Key)) != before {
				t.Errorf("section %q of %q: the record was touched", letter, value)
			}
		}
	}
}

func TestRecord_ThatIsDamagedGetsNoPlainAnswer(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	finish := succeeded("a result")
	finish.Outcome.Reason = "why"
	settle(t, s, claim(t, s, request("k"), dedupstore.AcquiredRun).Claim, finish)
	name := s.name(key("k"))
	raw := must(rdb.Get(t.Context(), name).Result())(t)
	damaged := []string{raw + "M00000003two", raw[:3] + "9999999999999999" + raw[19:], raw + "axxxxxxxxxx", raw + "lxxxxxxxxxxxxxxxx"}
	for cut := range len(raw) {
		damaged = append(damaged, raw[:cut])
	}
	for _, bad := range damaged {
		if err := rdb.Set(t.Context(), name, bad, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		s.plain.Store(true)
		plainly(t, s)
		plain, err1 := dedupstore.ClaimOne(t.Context(), s, request("k"))
		s.plain.Store(false)
		script, err2 := dedupstore.ClaimOne(t.Context(), s, request("k"))
		if plain.Status != script.Status || (err1 == nil) != (err2 == nil) {
			t.Errorf("%q: plain %s, %v; by script %s, %v", bad, plain.Status, err1, script.Status, err2)
		}
	}
}

func TestRecord_WithAnEndThatCannotBeReadIsNotFinished(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	a := claim(t, s, request("k"), dedupstore.AcquiredRun)
	if err := rdb.Append(t.Context(), s.name(key("k")), "zz").Err(); err != nil {
		t.Fatal(err)
	}
	before := dump(t, rdb, s.name(key("k")))
	var unreadable *dedupstore.RecordError
	if err := dedupstore.SettleOne(t.Context(), s, a.Claim, succeeded("ok")); !errors.As(err, &unreadable) {
		t.Errorf("error is %v, want a RecordError", err)
	}
	if dump(t, rdb, s.name(key("k"))) != before {
		t.Error("the record was touched")
	}
}

func TestRecord_WithMessagesThatCannotBeReadIsNotTakenOver(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	for what, damage := range map[string]func(*record){
		"stubs changed":   func(rec *record) { rec.sections['K'] = `[{"id":"d-2","topic":"x"}]` },
		"stubs gone":      func(rec *record) { delete(rec.sections, 'K') },
		"content changed": func(rec *record) { rec.sections['C'] = `[{"payload":"eQ=="}]` },
		"content gone":    func(rec *record) { delete(rec.sections, 'C') },
		"check changed":   func(rec *record) { rec.sections['h'] = "00000000" },
		"check gone":      func(rec *record) { delete(rec.sections, 'h') },
	} {
		r := request(what)
		a := claim(t, s, r, dedupstore.AcquiredRun)
		settle(t, s, a.Claim, producing(dedupstore.Outcome{Kind: dedupstore.Failed}, dedupstore.Produced{ID: "d-1", Topic: "x", Payload: []byte("x")}))
		expire(t, s, rdb, r.Key)
		edit(t, s, rdb, r.Key, damage)
		before := dump(t, rdb, s.name(r.Key))
		var unreadable *dedupstore.RecordError
		if _, err := dedupstore.ClaimOne(t.Context(), s, request(what)); !errors.As(err, &unreadable) {
			t.Errorf("%s: error is %v, want a RecordError", what, err)
		}
		if dump(t, rdb, s.name(r.Key)) != before {
			t.Errorf("%s: the record was touched", what)
		}
	}
}

func TestRecord_WithoutAnAttemptToGiveBackIsNotReleased(t *testing.T) {
	t.Parallel()
	s, rdb := onServer(t)
	r := request("none")
	a := claim(t, s, r, dedupstore.AcquiredRun)
	edit(t, s, rdb, r.Key, func(rec *record) { rec.sections['a'] = "0000000000" })
	var unreadable *dedupstore.RecordError
	if err := dedupstore.SettleOne(t.Context(), s, a.Claim, dedupstore.Release{Uncounted: true}); !errors.As(err, &unreadable) {
		t.Errorf("error is %v, want a RecordError", err)
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
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: a.Claim, Lease: 20 * time.Minute, Started: true}); err != nil {
		t.Fatal(err)
	}
	ttl("extend", 80*time.Minute)
	settle(t, s, a.Claim, dedupstore.Release{Delay: 5 * time.Hour})
	ttl("release", 6*time.Hour)
	edit(t, s, rdb, r.Key, func(rec *record) { rec.sections['d'] = "0000000000000001" })
	a = claim(t, s, request("ttl"), dedupstore.AcquiredRun)
	ttl("claim again", 61*time.Minute)
	finish := producing(dedupstore.Outcome{Kind: dedupstore.Succeeded}, dedupstore.Produced{ID: "1"})
	finish.Retention = 24 * time.Hour
	settle(t, s, a.Claim, finish)
	ttl("finish", 24*time.Hour+time.Minute)
	settle(t, s, a.Claim, dedupstore.Published{Retention: 48 * time.Hour})
	ttl("published", 48*time.Hour)
}
