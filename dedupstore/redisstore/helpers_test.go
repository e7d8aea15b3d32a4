package redisstore

import (
	"context"
	stdflag "flag" // flag is one of ours
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{}) // servers that are down on purpose
	if !proof {
		stdflag.Set("rapid.checks", "25") // unless -rapid.checks says otherwise
	}
	os.Exit(m.Run())
}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") != ""

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var prefixes atomic.Int64

// newStore returns a store with keys of its own on a server that others may use too.
func newStore(t testing.TB, rdb redis.UniversalClient) *Store {
	t.Helper()
	return must(New(rdb, Config{Prefix: fmt.Sprintf("test-%s-%d", ids.New(), prefixes.Add(1))}))(t)
}

// onServer returns a store on a real server, and a client to look at it.
func onServer(t testing.TB) (*Store, *redis.Client) {
	t.Helper()
	rdb := redistest.Start(t).Client()
	return newStore(t, rdb), rdb
}

// deafClient returns a client that does not heed contexts, as by go-redis's default.
func deafClient(t testing.TB, server *redistest.Server) *redis.Client {
	t.Helper()
	o := server.Options()
	o.ContextTimeoutEnabled = false
	rdb := redis.NewClient(o)
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// ownServer starts a server that no other test uses, for tests that change it or stand a proxy before it.
func ownServer(t testing.TB) *redistest.Server {
	t.Helper()
	return redistest.Start(t, "--appendonly", "no")
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

var (
	key       = claimtest.Key
	claim     = claimtest.Claim
	settle    = claimtest.Settle
	succeeded = claimtest.Succeeded
)

func request(id string) dedupstore.Request {
	return dedupstore.Request{
		Key: key(id), Owner: ids.Token(), Lease: time.Minute, Retention: time.Hour, MaxAttempts: 3,
		Fingerprint: dedupstore.Fingerprint{Scheme: "sha256", Sum: "abc"}, Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

func failed() dedupstore.Finish {
	return dedupstore.Finish{Retention: time.Hour, Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}}
}

func producing(o dedupstore.Outcome, produced ...dedupstore.Produced) dedupstore.Finish {
	o.Produced = produced
	return dedupstore.Finish{Retention: time.Hour, Outcome: o}
}

// edit changes a record by hand; its time to live stays.
func edit(t testing.TB, s *Store, rdb redis.UniversalClient, k dedupstore.Key, change func(rec *record)) {
	t.Helper()
	rec := must(decodeRecord(must(rdb.Get(t.Context(), s.name(k)).Result())(t)))(t)
	change(&rec)
	if err := rdb.Set(t.Context(), s.name(k), encodeRecord(rec), redis.KeepTTL).Err(); err != nil {
		t.Fatal(err)
	}
}

// encodeRecord writes a record as the scripts do.
func encodeRecord(rec record) string {
	b := append(appendDigits([]byte{layoutVersion, rec.state, rec.kind}, rec.fence, fenceSize), rec.owner...)
	const first, last = "anrbeftTwSdhkMXBKCH", "lL"
	var unknown []byte
	for letter := range rec.sections {
		if strings.IndexByte(first+last, letter) < 0 {
			unknown = append(unknown, letter)
		}
	}
	slices.Sort(unknown)
	for _, letter := range slices.Concat([]byte(first), unknown, []byte(last)) {
		if !rec.has(letter) {
			continue
		}
		if _, fixed := fixedSections[letter]; fixed {
			b = append(append(b, letter), rec.sections[letter]...)
		} else {
			b = appendText(b, letter, rec.sections[letter])
		}
	}
	return string(b)
}

// expire ends the record's lease, as if its time had come.
func expire(t testing.TB, s *Store, rdb redis.UniversalClient, k dedupstore.Key) {
	t.Helper()
	edit(t, s, rdb, k, func(rec *record) {
		delete(rec.sections, 'L')
		rec.sections['l'] = "0000000000000001"
	})
}
