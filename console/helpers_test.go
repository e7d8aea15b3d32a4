package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/outbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A site is a console with a server and a browser without JavaScript.
type site struct {
	testing.TB
	console *Console
	store   *pagedStore
	box     *toyBox
	dead    *consumertest.Letters
	reruns  *consumertest.Reruns
	server  *httptest.Server
	browser *http.Client

	mu    sync.Mutex
	audit []Entry
}

// everything may be done by anybody.
func everything(*http.Request, Action) (string, error) { return "ada", nil }

// newSite starts a console with all sources, and its loop.
func newSite(t testing.TB, change func(*Config)) *site {
	t.Helper()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{TB: t, store: &pagedStore{Memory: memory, page: 1000}, box: &toyBox{}, dead: &consumertest.Letters{},
		reruns: &consumertest.Reruns{Store: memory}}
	s.dead.To = s.reruns
	config := Config{
		Stores:      []Store{{Name: "records", Inspector: s.store}},
		Outboxes:    []Outbox{{Name: "shop", Inspector: s.box}},
		DeadLetters: []DeadLetterTopic{{Name: "dead.billing", Source: s.dead}},
		Counters: func(context.Context) ([]Counter, error) {
			return []Counter{{"billing", "charge", "claimed", "", time.Now().UnixMilli()}}, nil
		},
		Findings: func(context.Context) ([]health.Finding, error) {
			return []health.Finding{{Severity: "warning", Subject: "store", Finding: "its clock is behind"}}, nil
		},
		Trace: "https://traces.example/{trace}", TraceSearch: "https://traces.example/?id={id}",
		Authorize: ViewOnly,
		Every:     100 * time.Millisecond, Rate: 10_000, Logger: slog.New(slog.DiscardHandler),
		Audit: func(_ context.Context, e Entry) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.audit = append(s.audit, e)
		},
	}
	if change != nil {
		change(&config)
	}
	if s.console, err = New(config); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/console/", s.console.Handler())
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	s.browser = newBrowser(t)
	return s
}

func newBrowser(t testing.TB) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 300}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Jar: jar, Transport: transport, Timeout: time.Minute}
}

// runs starts the loop, and ends it with the test.
func (s *site) runs() *site {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.console.Run(ctx) }()
	s.Cleanup(func() {
		stop()
		<-ended
	})
	for !s.console.running.Load() {
		time.Sleep(time.Millisecond)
	}
	return s
}

func (s *site) url(page string) string { return s.server.URL + "/console/" + page }

// get loads a page.
func (s *site) get(page string) (status int, body string) {
	s.Helper()
	answer, err := s.browser.Get(s.url(page))
	if err != nil {
		s.Fatal(err)
	}
	return read(s.TB, answer)
}

func read(t testing.TB, answer *http.Response) (status int, body string) {
	t.Helper()
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// eventually loads a page until it has a text.
func (s *site) eventually(page, text string) string {
	s.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		status, body := s.get(page)
		if strings.Contains(body, text) {
			return body
		}
		if status == http.StatusInternalServerError || time.Now().After(end) {
			s.Fatalf("%s has no %q in\n%s", page, text, body)
		}
	}
}

// token is what the browser's forms carry.
func (s *site) token() string {
	s.Helper()
	_, body := s.get("")
	u, err := url.Parse(s.url(""))
	if err != nil {
		s.Fatal(err)
	}
	for _, c := range s.browser.Jar.Cookies(u) {
		if c.Name == cookieName {
			return s.console.token(c.Value)
		}
	}
	s.Fatalf("the page set no cookie:\n%s", body)
	return ""
}

// post sends a form, and follows where it leads.
func (s *site) post(page string, form url.Values) (status int, body string, at string) {
	s.Helper()
	answer, err := s.browser.PostForm(s.url(page), form)
	if err != nil {
		s.Fatal(err)
	}
	at = answer.Request.URL.Path + "?" + answer.Request.URL.RawQuery
	status, body = read(s.TB, answer)
	return status, body, at
}

// acts plans an action, confirms it, and waits until it has ended. It returns the task's page.
func (s *site) acts(do Action, form url.Values, confirm url.Values) string {
	s.Helper()
	form.Set("do", string(do))
	form.Set("token", s.token())
	status, body, at := s.post("plan", form)
	id := idField.FindStringSubmatch(body)
	if status != http.StatusOK || len(id) == 0 {
		s.Fatalf("%s: plan: status %d, %s\n%s", do, status, at, body)
	}
	if confirm == nil {
		confirm = url.Values{}
	}
	confirm.Set("id", id[1])
	confirm.Set("token", s.token())
	status, body, at = s.post("act", confirm)
	if status != http.StatusOK || !strings.Contains(at, "/task?") {
		s.Fatalf("%s: act: status %d at %s\n%s", do, status, at, body)
	}
	return s.eventually(strings.TrimPrefix(at, "/console/"), `id="task-state" data-announce>done<`)
}

var idField = regexp.MustCompile(`name="id" value="([^"]+)"`)

func (s *site) entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.audit)
}

func key(id string) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}
}

// claims makes a record that runs.
func (s *site) claims(k dedupstore.Key) dedupstore.Claim {
	s.Helper()
	a, err := dedupstore.ClaimOne(context.Background(), s.store, dedupstore.Request{
		Key: k, Owner: rand.Text(), Lease: time.Hour, Retention: time.Hour, MaxAttempts: 5, Holder: "billing-1:417",
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	})
	if err != nil {
		s.Fatal(err)
	}
	return a.Claim
}

func (s *site) ends(k dedupstore.Key, end dedupstore.Settlement) {
	s.Helper()
	if err := dedupstore.SettleOne(context.Background(), s.store, s.claims(k), end); err != nil {
		s.Fatal(err)
	}
}

// finishes makes a record with an outcome.
func (s *site) finishes(k dedupstore.Key, o dedupstore.Outcome) {
	s.Helper()
	s.ends(k, dedupstore.Finish{Outcome: o, Retention: time.Hour, Published: true, Took: 12 * time.Millisecond})
}

// fill makes a record in each state.
func (s *site) fill() *site {
	s.Helper()
	s.finishes(key("good"), dedupstore.Outcome{
		Kind: dedupstore.Succeeded, Result: []byte("secret-result"),
		Produced: []dedupstore.Produced{{ID: "out-1", Topic: "t"}},
	})
	dead := []dedupstore.Produced{{ID: "dead-1", Topic: "dead.billing"}}
	s.finishes(key("bad"), dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card 4711 refused", Produced: dead})
	s.finishes(key("bad-2"), dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card 4712 refused", Produced: dead})
	s.finishes(key("doubtful"), dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "no answer from the bank"})
	s.claims(key("busy"))
	s.ends(key("later"), dedupstore.Release{Reason: "bank: connection refused", Delay: time.Minute})
	s.ends(key("half"), dedupstore.Finish{
		Outcome: dedupstore.Outcome{
			Kind: dedupstore.Succeeded, Produced: []dedupstore.Produced{{ID: "out-2", Topic: "t"}},
		},
		Retention: time.Hour,
	})
	other := key("good")
	other.Handler = "mail"
	s.finishes(other, dedupstore.Outcome{Kind: dedupstore.Succeeded})
	err := s.store.NoteDuplicates(context.Background(), []dedupstore.Duplicates{{
		Key: key("good"), Count: 3, Last: time.Now(), Retention: time.Hour,
	}})
	if err != nil {
		s.Fatal(err)
	}
	written := time.Now().Add(-time.Minute)
	s.box.rows = []outbox.RowInfo{
		{ID: "good", Topic: "orders", State: outbox.Published, Written: written, Ended: written.Add(time.Second)},
		{ID: "row-dead", Topic: "orders", State: outbox.Dead, Written: written, Ended: written.Add(time.Second),
			Error: "too large"},
		{ID: "row-dead", Topic: "audit", State: outbox.Dead, Written: written, Ended: written.Add(time.Second),
			Error: "too large"},
		{ID: "row-wait", Topic: "orders", State: outbox.Pending, Written: written, Due: written},
	}
	letter := s.letter(key("bad"), "card 4711 refused")
	letter.Header["tenant"], letter.Payload = "secret-header", []byte("secret-payload")
	letter.Position, letter.Time = "17", written
	s.dead.Add(letter)
	return s
}

// letter is the dead letter of a message that failed.
func (s *site) letter(k dedupstore.Key, reason string) deadletters.Letter {
	s.Helper()
	records, err := s.store.Look(s.Context(), []dedupstore.Key{k})
	if err != nil {
		s.Fatal(err)
	}
	return consumertest.DeadLetter(k, records[0].Fence, reason)
}

func messageLink(k dedupstore.Key) string {
	return string(link("message", "in", "records", "key", k.String()))
}

// screens are pages with all kinds of things on them.
func screens() []string {
	return []string{
		"", "messages", "messages?id=good", "messages?state=failed&group=billing&handler=charge&reason=card&since=1h",
		messageLink(key("good")), messageLink(key("bad")), messageLink(key("doubtful")), messageLink(key("busy")),
		messageLink(key("later")), messageLink(key("half")), messageLink(key("gone")),
		"failures", "failures?list=1", "failures?pattern=card+%23+refused&list=1", "failures?letters=dead.billing",
		"letter?in=dead.billing&at=17", "outbox", "outbox?state=published", "outbox?state=all&topic=orders",
		"health", "log",
	}
}

// A pagedStore is a store in memory that lists in pages, in the order of keys, and counts how often it is asked.
type pagedStore struct {
	*dedupstore.Memory
	page int
	bad  error // comes with each page

	mu    sync.Mutex
	asked int
}

func (p *pagedStore) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	p.mu.Lock()
	p.asked++
	size := p.page
	p.mu.Unlock()
	all, err := p.Memory.List(ctx, dedupstore.Filter{}, "")
	if err != nil {
		return all, err
	}
	slices.SortFunc(all.Records, func(a, b dedupstore.Record) int {
		return strings.Compare(a.Key.String(), b.Key.String())
	})
	from, _ := strconv.Atoi(after)
	to := min(from+size, len(all.Records))
	page := dedupstore.Page{Looked: to - from, Total: len(all.Records)}
	for _, r := range all.Records[from:to] {
		if f.Matches(&r) {
			page.Records = append(page.Records, r)
		}
	}
	if to < len(all.Records) {
		page.Next = strconv.Itoa(to)
	}
	return page, p.bad
}

func (p *pagedStore) Count(
	ctx context.Context, f dedupstore.Filter, after string,
) (dedupstore.Count, error) {
	c, err := p.Memory.Count(ctx, f, after)
	return c, errors.Join(err, p.bad)
}

func (p *pagedStore) lists() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// A toyBox is an outbox in memory.
type toyBox struct {
	mu   sync.Mutex
	rows []outbox.RowInfo
}

func (b *toyBox) Stats(context.Context) (s outbox.Stats, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rows {
		switch r.State {
		case outbox.Dead:
			s.Dead++
		case outbox.Published:
		default:
			s.Pending++
			s.Oldest = max(s.Oldest, time.Since(r.Written))
		}
	}
	return s, nil
}

func (b *toyBox) List(_ context.Context, f outbox.Filter, _ string) (page outbox.Page, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rows {
		if f.Wants(r.State) && (f.Topic == "" || f.Topic == r.Topic) && (f.ID == "" || f.ID == r.ID) {
			page.Rows = append(page.Rows, r)
		}
	}
	page.Looked = len(b.rows)
	return page, nil
}

func (b *toyBox) Count(ctx context.Context, f outbox.Filter, after string) (c outbox.Count, err error) {
	page, err := b.List(ctx, f, after)
	for _, r := range page.Rows {
		c.Tallies = append(c.Tallies, outbox.Tally{Topic: r.Topic, State: r.State, Rows: 1})
	}
	c.Looked = page.Looked
	return c, err
}

func (b *toyBox) change(dead []outbox.RowInfo, to outbox.State) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.rows {
		if b.rows[i].State == outbox.Dead && slices.ContainsFunc(dead, func(r outbox.RowInfo) bool {
			return r.ID == b.rows[i].ID && r.Topic == b.rows[i].Topic && r.Ended.Equal(b.rows[i].Ended)
		}) {
			b.rows[i].State = to
			n++
		}
	}
	b.rows = slices.DeleteFunc(b.rows, func(r outbox.RowInfo) bool { return r.State == "" })
	return n, nil
}

func (b *toyBox) Requeue(_ context.Context, dead ...outbox.RowInfo) (int, error) {
	return b.change(dead, outbox.Pending)
}

func (b *toyBox) Discard(_ context.Context, dead ...outbox.RowInfo) (int, error) {
	return b.change(dead, "")
}

func (b *toyBox) Replay(_ context.Context, r outbox.ReplayRequest) (int, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for i := range b.rows {
		row := &b.rows[i]
		if row.State == outbox.Published && slices.Contains(r.IDs, row.ID) && (r.Topic == "" || r.Topic == row.Topic) {
			row.State = outbox.Pending
			n++
		}
	}
	return n, nil
}

func (b *toyBox) states() (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.rows {
		all = append(all, r.ID+" "+string(r.State))
	}
	return all
}

var _ outbox.Replayer = (*toyBox)(nil)

func numbered(prefix string, n int) string { return fmt.Sprintf("%s-%06d", prefix, n) }
