package dynamostore

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/recordstore"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

func TestStore_AMessageTakesTwoWrites(t *testing.T) {
	t.Parallel()
	var c tally
	s := newStore(t, c.count)
	settle(t, s, claim(t, s, request("0"), dedupstore.AcquiredRun).Claim, succeeded(""))
	c.wants(t, "the first message, with the time", 1, 2)
	r := request("1")
	first := claim(t, s, r, dedupstore.AcquiredRun).Claim
	c.wants(t, "a claim", 0, 1)
	if err := dedupstore.ExtendOne(t.Context(), s, dedupstore.Extension{Claim: first, Lease: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c.wants(t, "an extension", 0, 1)
	claim(t, s, request("1"), dedupstore.Busy)
	c.wants(t, "a copy while this store has the claim", 1, 0)
	f := succeeded("")
	f.Outcome.Produced = []dedupstore.Produced{{ID: "receipt"}}
	settle(t, s, first, f)
	c.wants(t, "a finish with a message", 0, 1)
	settle(t, s, first, dedupstore.Published{Retention: time.Hour})
	c.wants(t, "that it is published", 1, 1)
	claim(t, s, request("1"), dedupstore.Done)
	c.wants(t, "a duplicate, at an endpoint that returns no old items", 1, 1)
}

func TestStore_TakesTheOldItemFromARefusal(t *testing.T) {
	t.Parallel()
	proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
	proxy.AddOldItems(keyAttribute)
	var c tally
	s, clock := clocked(t, clientOf(t, proxy.URL, once, c.count), newTable(t))
	r := request("1")
	first := claim(t, s, r, dedupstore.AcquiredRun).Claim
	settle(t, s, first, succeeded("paid"))
	c.wants(t, "the first message, with the time", 1, 2)
	if a := claim(t, s, request("1"), dedupstore.Done); string(a.Outcome.Result) != "paid" || proxy.Added() != 1 {
		t.Errorf("the outcome is %+v, %d items were added", a.Outcome, proxy.Added())
	}
	c.wants(t, "a duplicate", 0, 1)

	crashed := request("2")
	crashed.Lease = time.Millisecond
	lost := claim(t, s, crashed, dedupstore.AcquiredRun).Claim
	clock.Advance(crashed.Lease + s.slack + 10*time.Millisecond)
	other := storeOf(t, clientOf(t, proxy.URL, once), s.table)
	other.wall = clock.Now
	if a := claim(t, other, request("2"), dedupstore.AcquiredRun); a.Claim.Attempt != 2 {
		t.Errorf("taken over as attempt %d", a.Claim.Attempt)
	}
	c.wants(t, "a claim", 0, 1)
	if err := dedupstore.SettleOne(t.Context(), s, lost, succeeded("")); !errors.Is(err, dedupstore.ErrClaimLost) {
		t.Errorf("a claim that was taken over was settled: %v", err)
	}
	c.wants(t, "a settlement of a claim that was lost", 0, 1)
}

func TestStore_NamesArePartedByColons(t *testing.T) {
	t.Parallel()
	seen := map[string]dedupstore.Key{}
	texts := []string{"a", ":", "%", "%3A", "a:b", "%25", "界", strings.Repeat(":", dedupstore.MaxScopePart)}
	for _, scope := range texts {
		for _, id := range append(texts, strings.Repeat(":", dedupstore.MaxID)) {
			k := dedupstore.Key{Tenant: scope, Group: "g", Handler: scope, ID: id}
			name := nameOf(k)
			if back, ok := keyOf(name); !ok || back != k {
				t.Errorf("%q is read as %+v, %v", name, back, ok)
			}
			if other, taken := seen[name]; taken && other != k {
				t.Errorf("%+v and %+v share %q", k, other, name)
			}
			if seen[name] = k; len(name) > 2048 {
				t.Errorf("%+v has a name of %d bytes", k, len(name))
			}
		}
	}
	for _, foreign := range []string{"", "a", "a:b:c", "a:b:c:", "a::c:d", "%3a:b:c:d"} {
		if k, ok := keyOf(foreign); ok {
			t.Errorf("%q is taken for %+v", foreign, k)
		}
	}
}

// DynamoDB removes items some time after their TTL.
func TestStore_AnItemPastItsTTLIsNoRecordButKeepsItsFence(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := request("1")
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	old := dedupstore.Stored{
		State: dedupstore.Finished, Owner: r.Owner, Fence: ahead, Attempts: 3, Expires: time.Now().Add(-time.Second),
		Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}, Decided: ahead,
	}
	if _, _, err := s.write(t.Context(), r.Key, &old, 0, recordstore.Time{}); err != nil {
		t.Fatal(err)
	}
	if seen, err := s.Look(t.Context(), []dedupstore.Key{r.Key}); err != nil || seen[0].State != dedupstore.Absent {
		t.Errorf("it looks like %+v, %v", seen, err)
	}
	if page, err := s.List(t.Context(), dedupstore.Filter{}, ""); err != nil || len(page.Records) != 0 {
		t.Errorf("the list has %+v, %v", page, err)
	}
	a := claim(t, s, r, dedupstore.AcquiredRun)
	if a.Found != dedupstore.Absent || a.Claim.Attempt != 1 || a.Claim.Fence != ahead+1 {
		t.Errorf("answered %+v, want a first run under fence %d", a, ahead+1)
	}
}

func TestStore_OtherItemsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := nameOf(key("1"))
	for what, change := range map[string]func(map[string]types.AttributeValue){
		"version 9": func(item map[string]types.AttributeValue) {
			item[recordAttribute] = &types.AttributeValueMemberB{Value: []byte{9}}
		},
		"lacks": func(item map[string]types.AttributeValue) { delete(item, recordAttribute) },
		"no number": func(item map[string]types.AttributeValue) {
			item[numberAttribute] = &types.AttributeValueMemberN{Value: "0"}
		},
	} {
		r := &dedupstore.Stored{State: dedupstore.Running, Fence: 1, Expires: time.Now().Add(time.Hour)}
		item := encode(key("1"), recordstore.NewNumber(), r)
		change(item)
		put := &dynamodb.PutItemInput{TableName: &s.table, Item: item}
		if _, err := s.client.PutItem(t.Context(), put); err != nil {
			t.Fatal(err)
		}
		wanted := func(err error) {
			t.Helper()
			var record *dedupstore.RecordError
			if !errors.As(err, &record) || record.Key != name || !strings.Contains(err.Error(), what) {
				t.Errorf("got %v, want %q", err, what)
			}
		}
		_, err := dedupstore.ClaimOne(t.Context(), s, request("1"))
		wanted(err)
		c := dedupstore.Claim{Key: key("1"), Owner: ids.Token(), Fence: 1, Lease: time.Minute, Retention: time.Minute}
		wanted(dedupstore.SettleOne(t.Context(), s, c, succeeded("")))
		_, err = s.Look(t.Context(), []dedupstore.Key{key("1")})
		wanted(err)
		_, err = s.List(t.Context(), dedupstore.Filter{}, "")
		wanted(err)
		if now := itemOf(t, s, key("1")); fmt.Sprint(now[expiresAttribute]) == "" || len(now) != len(item) {
			t.Errorf("the item was touched: %v", now)
		}
	}
}

func TestStore_ARecordThatFitsNoItemIsRefused(t *testing.T) {
	t.Parallel()
	claimtest.TooLarge(t, newStore(t), maxItem)
}

func TestStore_ItemsAreSmall(t *testing.T) {
	t.Parallel()
	r := request("order-1234567890")
	r.Trace, r.Holder = strings.Repeat("t", 55), "host-1234567890:12345"
	r.Fingerprint = dedupstore.Fingerprint{Scheme: "sha256", Sum: strings.Repeat("s", 43)}
	running, a := dedupstore.Stored{}.Claim(r, time.Now())
	done, err := running.Settle(a.Claim, succeeded(""), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if size := itemSize(encode(r.Key, recordstore.NewNumber(), done)); size > 420 {
		t.Errorf("a usual item has %d bytes", size)
	}
}

func TestStore_ManyChangesOfOneRecord(t *testing.T) {
	t.Parallel()
	claimtest.ManyChanges(t, newStore(t), 24)
}

func TestStore_OneOfManyClaimsIsGranted(t *testing.T) {
	t.Parallel()
	claimtest.OneOfManyClaims(t, newStore(t), 10, 32)
}

func TestStore_ThrottlingIsAnErrorThatPasses(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	c := claim(t, s, request("1"), dedupstore.AcquiredRun).Claim
	for _, refusal := range []string{
		"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded",
	} {
		proxy.Inject(func(string) dynamotest.Fault { return dynamotest.Fault{Refuse: refusal} })
		var setup *dedupstore.SetupError
		r := request(refusal)
		if _, err := dedupstore.ClaimOne(t.Context(), s, r); err == nil || errors.As(err, &setup) ||
			!strings.Contains(err.Error(), refusal) {
			t.Errorf("claim: %v, want %s", err, refusal)
		}
		if err := dedupstore.SettleOne(t.Context(), s, c, succeeded("")); err == nil ||
			errors.Is(err, dedupstore.ErrClaimLost) {
			t.Errorf("settle: %v, want %s", err, refusal)
		}
		proxy.Inject(nil)
		if a := claim(t, s, r, dedupstore.AcquiredRun); a.Claim.Attempt != 1 {
			t.Errorf("attempt %d was counted", a.Claim.Attempt)
		}
	}
	settle(t, s, c, succeeded(""))
}

func TestStore_ARepeatedOperationAfterALostReply(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	claim(t, s, request("0"), dedupstore.AcquiredRun)
	drop := func() {
		proxy.Inject(func(operation string) dynamotest.Fault {
			return dynamotest.Fault{DropReply: operation == "PutItem"}
		})
	}
	drop()
	r := request("1")
	if _, err := dedupstore.ClaimOne(t.Context(), s, r); err == nil {
		t.Fatal("a claim without a reply is no error")
	}
	proxy.Inject(nil)
	a := claim(t, s, r, dedupstore.AcquiredRun)
	if a.Claim.Attempt != 1 {
		t.Errorf("attempt %d", a.Claim.Attempt)
	}
	drop()
	if err := dedupstore.SettleOne(t.Context(), s, a.Claim, succeeded("paid")); err == nil {
		t.Fatal("a settlement without a reply is no error")
	}
	proxy.Inject(nil)
	settle(t, s, a.Claim, succeeded("paid"))
	claim(t, s, r, dedupstore.Done)
}

// The client itself sends again what got no reply, and is refused what it has done.
func TestStore_TheClientSendsAgain(t *testing.T) {
	t.Parallel()
	proxy := dynamotest.StartProxy(t, dynamotest.Shared(t))
	s := storeOf(t, clientOf(t, proxy.URL), newTable(t))
	claim(t, s, request("0"), dedupstore.AcquiredRun)
	var mu sync.Mutex
	puts := 0
	proxy.Inject(func(operation string) dynamotest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if operation == "PutItem" {
			puts++
		}
		return dynamotest.Fault{DropReply: operation == "PutItem" && puts%2 == 1}
	})
	a := claim(t, s, request("1"), dedupstore.AcquiredRun)
	settle(t, s, a.Claim, succeeded("paid"))
	if a.Claim.Attempt != 1 || proxy.Dropped() != 2 {
		t.Errorf("attempt %d, %d replies dropped", a.Claim.Attempt, proxy.Dropped())
	}
	claim(t, s, request("1"), dedupstore.Done)
}

func TestStore_ListsByPages(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const records, batch = pageSize + 300, 25
	running := &dedupstore.Stored{State: dedupstore.Running, Fence: 1, Expires: time.Now().Add(time.Hour)}
	for i := 0; i < records; i += batch {
		var puts []types.WriteRequest
		for n := range batch {
			k := key(fmt.Sprint(i + n))
			if n%10 == 0 {
				k.Handler = "refund"
			}
			puts = append(puts, types.WriteRequest{
				PutRequest: &types.PutRequest{Item: encode(k, recordstore.NewNumber(), running)},
			})
		}
		in := &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{s.table: puts}}
		if out, err := s.client.BatchWriteItem(t.Context(), in); err != nil || len(out.UnprocessedItems) > 0 {
			t.Fatal(out, err)
		}
	}
	claimtest.Pages(t, s, pageSize, records, records/batch*3)
}
