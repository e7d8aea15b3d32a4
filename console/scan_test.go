package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
)

func TestMeter_RatesAndRestarts(t *testing.T) {
	t.Parallel()
	var m meter
	at := time.Unix(1_800_000_000, 0)
	claimed := func(n int64) Counter { return Counter{"g", "h", "claimed", "", n} }
	duplicate := func(n int64) Counter { return Counter{"g", "h", "duplicate_completed", "producer_retry", n} }
	m.add([]Counter{claimed(100), duplicate(50)}, at)
	m.add([]Counter{claimed(120), duplicate(60)}, at.Add(2*time.Second))
	m.add([]Counter{claimed(5), duplicate(60)}, at.Add(4*time.Second)) // its process was restarted
	v := m.view(nil)
	if v.Deliveries != 30 || v.Duplicates != 10 || v.Over != 4*time.Second || v.Rate != 30.0/4 {
		t.Errorf("the view is %+v", v)
	}
	if v.Ratio() != "33.3 %" || len(v.Columns) != 2 || !slices.Equal(v.Totals(), []float64{15, 0}) {
		t.Errorf("ratio %s, columns %v", v.Ratio(), v.Columns)
	}
	if len(v.Causes) != 1 || v.Causes[0].Name != "producer retry" || v.Causes[0].N != 10 {
		t.Errorf("causes %+v", v.Causes)
	}
	// Runs that failed are red, and no success beside.
	failures := func(of string, n int64) Counter { return Counter{"g", "h", of, "", n} }
	m = meter{}
	m.add([]Counter{claimed(100), failures(Failed, 3), failures(Parked, 0)}, at)
	m.add([]Counter{claimed(110), failures(Failed, 9), failures(Parked, 1)}, at.Add(time.Second))
	v = m.view(nil)
	var shown []string
	for _, o := range v.Outcomes {
		shown = append(shown, fmt.Sprint(o.Name, o.Tone, o.N))
	}
	if !slices.Equal(shown, []string{"claimedgood3", "failedbad6", "unknowndoubt1"}) || v.Deliveries != 10 {
		t.Errorf("%d deliveries: %v", v.Deliveries, shown)
	}
	for i := range 2 * mostBeats {
		m.add([]Counter{claimed(int64(5 + i))}, at.Add(time.Duration(6+2*i)*time.Second))
	}
	if len(m.beats) != mostBeats {
		t.Errorf("%d samples are kept", len(m.beats))
	}
}

func TestPrometheus_ReadsClaims(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			w.Write([]byte(`# TYPE oncemill_claims_total counter
oncemill_claims_total{messaging_consumer_group_name="billing",oncemill_handler="a\"b\\c",` +
				`oncemill_outcome="claimed"} 1.2e+03 1700000000000
oncemill_claims_total{oncemill_duplicate_cause="producer_retry",oncemill_outcome="duplicate_completed",} 7
oncemill_failures_total{messaging_consumer_group_name="billing",oncemill_handler="h",oncemill_result="exhausted"} 3
oncemill_failures_total{messaging_consumer_group_name="billing",oncemill_handler="h",oncemill_result="unknown"} 2
oncemill_claims_created{oncemill_outcome="claimed"} 1
go_goroutines 12
`))
		case "/broken":
			w.Write([]byte(`oncemill_claims_total{oncemill_outcome="claimed} 1` + "\n"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	all, err := Prometheus(server.Client(), server.URL+"/metrics", server.URL+"/metrics")(t.Context())
	want := []Counter{
		{"billing", `a"b\c`, "claimed", "", 1200}, {"", "", "duplicate_completed", "producer_retry", 7},
		{"billing", "h", Failed, "", 3}, {"billing", "h", Parked, "", 2},
	}
	if err != nil || !slices.Equal(all, append(want, want...)) {
		t.Errorf("%+v, %v", all, err)
	}
	for _, page := range []string{"/broken", "/gone"} {
		if _, err := Prometheus(server.Client(), server.URL+page)(t.Context()); err == nil {
			t.Errorf("%s was read", page)
		}
	}
	server.CloseClientConnections()
	server.Close()
	if _, err := Prometheus(nil, server.URL)(t.Context()); err == nil {
		t.Error("a server that is gone was read")
	}
}

// Pages go through all records, each once, however the store's own pages lie.
func TestFind_GoesThroughAll(t *testing.T) {
	t.Parallel()
	const records = 137
	for _, size := range []int{1, 7, 50, 60, 1000} {
		s := newSite(t, nil)
		s.store.page = size
		for i := range records {
			s.finishes(key(numbered("m", i)), dedupstore.Outcome{Kind: dedupstore.Succeeded})
		}
		seen, pages := map[string]int{}, 0
		q := &query{In: "records"}
		for {
			f, err := s.console.find(t.Context(), s.console.config.Stores[0], q, pageSize, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range f.Records {
				seen[r.Key.ID]++
			}
			if pages++; f.Next == "" {
				if f.Looked != records || f.Total != records {
					t.Errorf("pages of %d: looked at %d of %d", size, f.Looked, f.Total)
				}
				break
			}
			r := httptest.NewRequest(http.MethodGet, "/messages"+f.Next, http.NoBody)
			if q, err = readQuery(r.URL.Query(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if len(seen) != records || pages != 3 {
			t.Errorf("pages of %d: %d records in %d pages", size, len(seen), pages)
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("pages of %d: %s came %d times", size, id, n)
			}
		}
	}
}

// A filter that matches rarely shows what there is when the time is over, and how to go on.
func TestFind_StopsInTime(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill()
	s.store.page = 1
	q := &query{In: "records", State: "unknown",
		Filter: dedupstore.Filter{Kinds: []dedupstore.Kind{dedupstore.Unknown}}}
	f, err := s.console.find(t.Context(), s.console.config.Stores[0], q, pageSize, 0)
	if err != nil || f.Full || f.Looked != 1 || f.Total != 8 || !strings.Contains(f.Next, "looked=1") ||
		!strings.Contains(f.Next, "state=unknown") {
		t.Errorf("%+v, %v", f, err)
	}
}

// An ID is found at once in the scopes that are known, however large the store is.
func TestFind_LooksUpIDs(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill().runs()
	s.eventually("", "billing / charge")
	s.store.mu.Lock()
	s.store.page = 1
	s.store.mu.Unlock()
	q := &query{In: "records", Filter: dedupstore.Filter{ID: "later"}}
	f, err := s.console.find(t.Context(), s.console.config.Stores[0], q, pageSize, 0)
	if err != nil || len(f.Records) != 1 || f.Records[0].Key.ID != "later" || f.Next == "" {
		t.Errorf("%+v, %v", f, err)
	}
}

// The loop's figures are those of the store, whatever its pages are, and an error leaves what was known.
func TestStoreScan_Counts(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill()
	s.store.page = 3
	w := &storeScan{name: "records", notes: &Notes{}}
	for range 18 {
		if _, err := w.step(t.Context(), s.store); err != nil {
			t.Fatal(err)
		}
	}
	sum := w.shown.Counts.Sum
	if sum.N != 8 || sum.Succeeded != 2 || sum.Failed != 2 || sum.Unknown != 1 || sum.Running != 1 ||
		sum.Retryable != 1 ||
		sum.Publishing != 1 || sum.Duplicates != 3 || len(w.shown.Counts.Scopes) != 2 {
		t.Errorf("counts %+v", w.shown.Counts)
	}
	f := w.shown.Failures
	if f.N != 3 || f.Unknown != 1 || len(f.Groups) != 2 || f.Groups[0].Pattern != "card # refused" ||
		f.Groups[0].N != 2 ||
		f.Groups[0].Hours[23] != 2 || f.Part() != "" {
		t.Errorf("failures %+v", f)
	}
	if r := w.shown.Running; r.N != 1 || len(r.Oldest) != 1 || r.Oldest[0].Key.ID != "busy" {
		t.Errorf("running %+v", r)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := w.step(ctx, s.store); !errors.Is(err, context.Canceled) || w.shown.Failures.N != 3 {
		t.Errorf("%v, %+v", err, w.shown.Failures)
	}
}

// A retryBox has rows that a relay tries again and again, which moves them to the end of its pages of three.
type retryBox struct {
	*toyBox
	backoff time.Duration
	due     []time.Time
}

func (b *retryBox) Count(_ context.Context, _ outbox.Filter, after string) (c outbox.Count, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	for i, at := range b.due {
		if at.Before(now) {
			b.due[i] = now.Add(b.backoff + time.Duration(i)*time.Millisecond)
		}
	}
	slices.SortFunc(b.due, time.Time.Compare)
	for _, at := range b.due {
		place := fmt.Sprint(at.UnixNano())
		if place > after && c.Looked < 3 {
			c.Next, c.Looked = place, c.Looked+1
			c.Tallies = append(c.Tallies, outbox.Tally{Topic: "orders", State: outbox.Delayed, Rows: 1})
		}
	}
	return c, nil
}

// Rows that relays move meanwhile are counted once, and a count ends.
func TestOutboxScan_RowsThatMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		box := &retryBox{toyBox: &toyBox{}, backoff: 500 * time.Millisecond, due: make([]time.Time, 8)}
		var seen outboxSeen
		for range 20 {
			if err := seen.look(t.Context(), box); err != nil {
				t.Fatal(err)
			}
			if got := seen.Topics; len(got) != 1 || got[0].Delayed != 8 || seen.Looked != 0 ||
				time.Since(seen.Counted) > time.Second {
				t.Fatalf("8 rows are counted as %+v", got)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// A record that another version wrote hides no other: neither from the loop nor from a page.
func TestConsole_RecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill()
	s.store.page, s.store.bad = 3, &dedupstore.RecordError{Key: "acme:billing:charge:newer", Problem: "has version 9"}
	w := &storeScan{name: "records", notes: &Notes{}}
	for range 18 {
		if _, err := w.step(t.Context(), s.store); !errors.Is(err, s.store.bad) {
			t.Errorf("a step returned %v", err)
		}
	}
	if n, f := w.shown.Counts.Sum.N, w.shown.Failures; n != 8 || f.N != 3 || f.Part() != "" {
		t.Errorf("%d counted, failures %+v", n, f)
	}
	for _, page := range []string{"messages", "failures?list=1"} {
		if _, text := s.get(page); !strings.Contains(text, "bad-2") || !strings.Contains(text, "has version 9") {
			t.Errorf("%s: %s", page, text)
		}
	}
}

func TestTraceLink_IsAnAddress(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		"https://t/{trace}":         "https://t/a%26b",
		"http://t/?q={trace}":       "http://t/?q=a%26b",
		"javascript:alert({trace})": "",
		"{trace}":                   "",
		"":                          "",
	} {
		if got := traceLink(pattern, "trace", "a&b"); got != want {
			t.Errorf("%q: %q, want %q", pattern, got, want)
		}
	}
}

// After a pause in which nobody looked, a page says how old its figures are.
func TestLivePart_SaysWhenItsFiguresAreOld(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for age, stale := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
		p := &livePart{Now: now, Snap: newSnapshot(seen{Stores: []*storeSeen{{At: now.Add(-age)}}}, now)}
		if got := !p.Stale().IsZero(); got != stale {
			t.Errorf("figures that are %v old: stale is %t", age, got)
		}
	}
}

// Figures of a part of the records say so, and that nothing was found there does not read as if nothing was there.
func TestOverview_SaysHowMuchIsSeen(t *testing.T) {
	t.Parallel()
	s, now := newSite(t, nil), time.Now()
	part := pass{Looked: 8, Total: 100}
	store := &storeSeen{Name: "records", At: now, Failures: failing{pass: part}, Running: working{pass: part}}
	html, err := s.console.event(t.Context(), &livePart{
		Now: now, Running: true, Snap: newSnapshot(seen{Stores: []*storeSeen{store}}, now),
	}, "overview")
	const said = "8 of 100 looked at so far"
	for _, text := range []string{
		"<small>" + said + "</small>", "handler at work: " + said, "No failure: " + said,
	} {
		if err != nil || !strings.Contains(string(html), text) {
			t.Errorf("no %q in\n%s, %v", text, html, err)
		}
	}
	if n := strings.Count(string(html), "<small>"+said); n != 3 {
		t.Errorf("%d figures of three say that they are a part", n)
	}
}

// A checked store knows what is wrong with its server.
type checked struct{ *pagedStore }

func (checked) Check(context.Context) (dedupstore.Report, error) {
	evicted := []string{"records are evicted"}
	return dedupstore.Report{Store: "redis", Warnings: evicted, Losses: evicted}, nil
}

// old is an outbox whose tables are those of an earlier version.
type old struct{ *toyBox }

func (old) Plan(context.Context) (dedupstore.Migration, error) {
	return dedupstore.Migration{Found: 1, Wanted: 2}, nil
}

// A console that is mounted without a doctor asks stores and outboxes themselves.
func TestHealth_WithoutADoctor(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Findings = nil
		c.Stores[0].Inspector = checked{c.Stores[0].Inspector.(*pagedStore)}
		c.Outboxes[0].Inspector = old{c.Outboxes[0].Inspector.(*toyBox)}
	}).runs()
	body := s.eventually("health", "records are evicted")
	if !strings.Contains(body, `<span class="badge t-bad">error</span><b>store records</b>`) ||
		!strings.Contains(body, "its schema has version 1, want 2") || !strings.Contains(body, `id="look"`) {
		t.Error(body)
	}
}

// A message is found at once in the scopes that the store remembers, also before the loop has seen any of them.
func TestFind_LooksInTheScopesOfTheStore(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill()
	s.store.mu.Lock()
	s.store.page = 1
	s.store.mu.Unlock()
	use := dedupstore.ScopeUse{Scope: key("later").Scope(), First: time.Now(), Last: time.Now()}
	if err := s.store.NoteScopes(t.Context(), []dedupstore.ScopeUse{use}); err != nil {
		t.Fatal(err)
	}
	q := &query{In: "records", Filter: dedupstore.Filter{ID: "later"}}
	f, err := s.console.find(t.Context(), s.console.config.Stores[0], q, pageSize, 0)
	if err != nil || len(f.Records) != 1 || f.Records[0].Key.ID != "later" {
		t.Errorf("%+v, %v", f, err)
	}
}
