package cassandrastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/recordstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

func TestStore_HowManyStatementsAMessageTakes(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	last := proxy.Statements()
	wants := func(what string, most int) {
		t.Helper()
		now := proxy.Statements()
		if now-last != most {
			t.Errorf("%s took %d statements, want %d", what, now-last, most)
		}
		last = now
	}
	claimed := func(id string, want dedupstore.Status) dedupstore.Claim {
		t.Helper()
		return claim(t, s, request(id), want).Claim
	}
	first := claimed("1", dedupstore.AcquiredRun)
	wants("a claim", 1)
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: first, Lease: time.Minute}); err != nil {
		t.Fatal(err)
	}
	wants("an extension", 1)
	claimed("1", dedupstore.Busy)
	wants("a copy while this store has the claim", 1)
	f := succeeded("")
	f.Outcome.Produced = []dedupstore.Produced{{ID: "receipt"}}
	settle(t, s, first, f)
	wants("a finish with a message", 1)
	claimed("2", dedupstore.AcquiredRun)
	wants("another claim", 1)
	settle(t, s, first, dedupstore.Published{Retention: time.Hour})
	wants("that it is published", 2)
	claimed("1", dedupstore.Done)
	wants("a duplicate", 1)
}

// Cassandra's columns have TTLs of their own: an INSERT would leave a row behind that a later write with a shorter TTL
// has left empty.
func TestStore_AShorterTTLLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := request("1")
	r.Retention = 24 * time.Hour
	c := claim(t, s, r, dedupstore.AcquiredRun).Claim
	f := succeeded("")
	f.Retention = time.Millisecond
	settle(t, s, c, f)
	deadline := time.Now().Add(testserver.WaitLimit)
	for rows := 1; rows > 0; <-time.After(50 * time.Millisecond) {
		if err := s.session.Query("SELECT count(*) FROM "+s.cfg.located()).ScanContext(t.Context(), &rows); err != nil {
			t.Fatal(err)
		}
		if rows > 0 && time.Now().After(deadline) {
			t.Fatal("the row is still there")
		}
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
}

func TestStore_OtherRowsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	running := dedupstore.Stored{State: dedupstore.Running, Fence: 1, Expires: time.Now().Add(time.Hour)}
	record := recordstore.Encode(&running)
	newer := append([]byte{9}, record[1:]...)
	for want, values := range map[string][]any{
		"of version 9": {int64(1), newer},
		"lacks rev":    {nil, record},
		"cut off":      {int64(1), record[:len(record)-1]},
	} {
		r := request(want)
		name := r.Key.String()
		cql := "UPDATE " + s.cfg.located() + " SET rev = ?, rec = ? WHERE id = ? IF rev = null"
		q := s.session.Query(cql, append(values, name)...)
		if applied, err := q.ScanCASContext(t.Context()); err != nil || !applied {
			t.Fatal(applied, err)
		}
		wanted := func(err error) {
			t.Helper()
			var record *dedupstore.RecordError
			if !errors.As(err, &record) || record.Key != name || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		_, err := dedupstore.ClaimOne(t.Context(), s, r)
		wanted(err)
		c := dedupstore.Claim{Key: r.Key, Owner: r.Owner, Fence: 1, Lease: time.Minute, Retention: time.Minute}
		wanted(dedupstore.SettleOne(t.Context(), s, c, succeeded("")))
		_, err = s.Look(t.Context(), []dedupstore.Key{r.Key})
		wanted(err)
		var rec []byte
		err = s.session.Query(s.cql.read, name).ScanContext(t.Context(), new(int64), &rec)
		if err != nil || !bytes.Equal(rec, values[1].([]byte)) {
			t.Errorf("the row was touched: %x, %v", rec, err)
		}
	}
	settle(t, s, claim(t, s, request("good"), dedupstore.AcquiredRun).Claim, succeeded(""))
	page, err := s.List(t.Context(), dedupstore.Filter{ID: "good"}, "")
	var unreadable *dedupstore.RecordError
	if len(page.Records) != 1 || !errors.As(err, &unreadable) {
		t.Errorf("the list has %+v, %v", page.Records, err)
	}
}

func TestStore_ARecordThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	claimtest.TooLarge(t, newStore(t), maxRecord)
}

func TestStore_ManyChangesOfOneRecord(t *testing.T) {
	t.Parallel()
	claimtest.ManyChanges(t, newStore(t), 12)
}

func TestStore_OneOfManyClaimsIsGranted(t *testing.T) {
	t.Parallel()
	claimtest.OneOfManyClaims(t, newStore(t), 3, 16)
}

func TestStore_ARefusalIsAnErrorThatPasses(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	for _, code := range []int{
		gocql.ErrCodeOverloaded, gocql.ErrCodeUnavailable, gocql.ErrCodeBootstrapping, gocql.ErrCodeWriteTimeout,
		gocql.ErrCodeReadTimeout,
	} {
		proxy.Inject(func() cassandratest.Fault { return cassandratest.Fault{Refuse: code} })
		r := request(fmt.Sprint(code))
		var setup *dedupstore.SetupError
		var refused gocql.RequestError
		if _, err := dedupstore.ClaimOne(t.Context(), s, r); errors.As(err, &setup) || !errors.As(err, &refused) ||
			refused.Code() != code {
			t.Errorf("code %x: claim: %v", code, err)
		}
		if err := dedupstore.SettleOne(t.Context(), s, c, succeeded("")); !errors.As(err, &refused) ||
			errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("code %x: settle: %v", code, err)
		}
		proxy.Inject(nil)
		if a := claim(t, s, r, dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
			t.Errorf("code %x: attempt %d was counted", code, a.Claim.Attempt)
		}
	}
	settle(t, s, c, succeeded(""))
}

// Cassandra says that it does not know what became of a write. A read settles it, within the same operation.
func TestStore_ATransactionThatTimedOutIsSettledByARead(t *testing.T) {
	t.Parallel()
	for name, done := range map[string]bool{"it was done": true, "it was not done": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, proxy := throughProxy(t)
			once := func() {
				var asked atomic.Bool
				proxy.Inject(func() (f cassandratest.Fault) {
					if !asked.Swap(true) {
						f.Refuse, f.DropReply = gocql.ErrCodeWriteTimeout, done
					}
					return f
				})
			}
			r := request("1")
			once()
			if a := claim(t, s, r, dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
				t.Errorf("attempt %d was counted", a.Claim.Attempt)
			}
			c := claim(t, s, request("2"), dedupstore.AcquiredRun).Claim
			once()
			settle(t, s, c, succeeded("paid"))
			if a := claim(t, s, request("2"), dedupstore.Done); string(a.Outcome.Result) != "paid" {
				t.Errorf("the outcome is %+v", a.Outcome)
			}
		})
	}
}

func TestStore_ARepeatedOperationAfterALostReply(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	drop := func() {
		proxy.Inject(func() cassandratest.Fault { return cassandratest.Fault{DropReply: true} })
	}
	unheard := func(do func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		drop()
		defer proxy.Inject(nil)
		if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("without a reply: %v", err)
		}
	}
	r := request("1")
	unheard(func(ctx context.Context) error { _, err := dedupstore.ClaimOne(ctx, s, r); return err })
	a := claim(t, s, r, dedupstore.AcquiredRun)
	if a.Claim.Attempt != 1 {
		t.Errorf("attempt %d", a.Claim.Attempt)
	}
	unheard(func(ctx context.Context) error { return dedupstore.SettleOne(ctx, s, a.Claim, succeeded("paid")) })
	settle(t, s, a.Claim, succeeded("paid"))
	claim(t, s, r, dedupstore.Done)
}

func TestStore_ListsByPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const records = pageSize + 300
	// Written by hand, without transactions, because it is so many.
	running := dedupstore.Stored{State: dedupstore.Running, Fence: 1, Expires: time.Now().Add(time.Hour)}
	rec := recordstore.Encode(&running)
	b := s.session.Batch(gocql.UnloggedBatch)
	for i := range records {
		k := key(fmt.Sprint(i))
		if i%10 == 0 {
			k.Handler = "refund"
		}
		b.Query("INSERT INTO "+s.cfg.located()+" (id, rev, rec) VALUES (?, ?, ?)", k.String(), int64(1), rec)
		if b.Size() == 50 || i == records-1 {
			if err := b.ExecContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			b = s.session.Batch(gocql.UnloggedBatch)
		}
	}
	claimtest.Pages(t, s, pageSize, records, records/10)
	if _, err := s.List(t.Context(), dedupstore.Filter{}, "x"); err == nil {
		t.Error("a page begins at x")
	}
}

func TestStore_ClaimsInItsOwnDatacenter(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	local := storeOf(t, s.session, Config{Keyspace: s.cfg.Keyspace, Table: s.cfg.Table, Local: true})
	settle(t, local, claim(t, local, request("1"), dedupstore.AcquiredRun).Claim, succeeded(""))
	claim(t, local, request("1"), dedupstore.Done)
	if _, err := local.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTurns_OneClaimOfAKeyAfterTheOther(t *testing.T) {
	t.Parallel()
	var turns turns
	end, err := turns.take(t.Context(), key("1"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := turns.take(t.Context(), key("2"))
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.take(ctx, key("1")); !errors.Is(err, context.Canceled) {
		t.Errorf("a claim did not wait: %v", err)
	}
	var group sync.WaitGroup
	var under, most atomic.Int64
	for range 20 {
		group.Go(func() {
			end, err := turns.take(t.Context(), key("1"))
			if err != nil {
				t.Error(err)
				return
			}
			most.Store(max(most.Load(), under.Add(1)))
			under.Add(-1)
			end()
		})
	}
	end()
	group.Wait()
	if most.Load() != 1 || len(turns.ended) != 0 {
		t.Errorf("%d claims at once; %d are left", most.Load(), len(turns.ended))
	}
}
