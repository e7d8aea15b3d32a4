package console

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
)

// named takes people at their word, which stands in a header.
func named(r *http.Request, _ Action) (string, error) { return r.Header.Get("X-User"), nil }

// as sends a request as somebody, from their own browser.
func (s *site) as(who, method, page string, form url.Values) (answer *http.Response, err error) {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url(page), strings.NewReader(form.Encode()))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("X-User", who)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.browser.Do(r)
}

// A page of another site can have its own name lead to the console, and is refused.
func TestHandler_RefusesForeignHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Hosts = []string{"ops.example.com"} }).fill()
	_, port, _ := net.SplitHostPort(s.server.Listener.Addr().String())
	for host, want := range map[string]int{
		"127.0.0.1:" + port: 200, "localhost:" + port: 200, "[::1]:" + port: 200, "10.0.0.7": 200, "localhost": 200,
		"ops.example.com": 200, "ops.example.com:443": 200,
		"evil.example": 403, "evil.example:" + port: 403, "127.0.0.1.evil.example": 403,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url("messages?state=failed"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		answer, err := s.browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if status, body := read(t, answer); status != want || status != 200 && strings.Contains(body, "bad-2") {
			t.Errorf("%q: status %d, want %d\n%s", host, status, want, body)
		}
	}
}

// The session is the server's, and belongs to a visitor.
func TestSession_IsMadeByTheServerForOneVisitor(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = named }).fill().runs()
	cookieOf := func(who, cookie string) string {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url("health"), http.NoBody)
		r.Header.Set("X-User", who)
		r.Header.Set("X-Forwarded-Proto", "https")
		r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if cookies := answer.Cookies(); len(cookies) > 0 {
			c := cookies[0]
			if !c.Secure || !c.HttpOnly {
				t.Errorf("behind a proxy with TLS, the cookie is %v", c)
			}
			return c.Value
		}
		return cookie
	}
	chosen := strings.Repeat("A", 26)
	ada := cookieOf("ada", chosen)
	if ada == chosen {
		t.Error("the client has chosen its session")
	}
	if again := cookieOf("ada", ada); again != ada {
		t.Error("a session lasts for one request only")
	}
	if bob := cookieOf("bob", ada); bob == ada {
		t.Error("two visitors share a session, its plans and its tokens")
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// What is asked for in a wrong way is no trouble of a server.
func TestHandler_WrongRequests(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	for _, page := range []string{"messages?id=%ff", "message?key=default:billing:charge:%ff", "outbox?topic=%fe"} {
		if status, body := s.get(page); status != http.StatusBadRequest {
			t.Errorf("%s: status %d\n%s", page, status, body)
		}
	}
	form := url.Values{"token": {s.token()}, "why": {strings.Repeat("x", 2<<20)}}
	if status, body, _ := s.post("act", form); status != http.StatusRequestEntityTooLarge ||
		!strings.Contains(body, "larger than a megabyte") {
		t.Errorf("status %d\n%s", status, body)
	}
}

// An error says where it happened and to whom, and how to try again.
func TestSorry_KeepsUserPlaceAndFilter(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = everything
		c.Stores[0].Inspector = downStore{c.Stores[0].Inspector.(*pagedStore), context.DeadlineExceeded}
	}).runs()
	status, body := s.get("messages?state=failed&group=billing")
	for _, text := range []string{
		">ada<", `<a href="messages" aria-current="page"`, `href="./messages?state=failed&amp;group=billing"`,
	} {
		if status != http.StatusBadGateway || !strings.Contains(body, text) {
			t.Errorf("status %d, and no %s in\n%s", status, text, body)
		}
	}
}

// Nobody's streams, plans and forms keep others out.
func TestBounds_AreForEachPerson(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var mu sync.Mutex
	s := newSite(t, func(c *Config) {
		c.Authorize = named
		c.Logger = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(b)
		}), nil))
	}).fill().runs()
	for range mostHeld {
		answer, err := s.as("ada", http.MethodGet, "live?screen=overview", nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatal(answer, err)
		}
		defer answer.Body.Close()
	}
	for who, want := range map[string]int{"ada": 503, "bob": 200} {
		answer, err := s.as(who, http.MethodGet, "live?screen=overview", nil)
		if err != nil || answer.StatusCode != want {
			t.Errorf("%s: %v, %v, want %d", who, answer, err, want)
			continue
		}
		answer.Body.Close()
	}
	mu.Lock()
	if !strings.Contains(log.String(), "too many live streams") {
		t.Error("nobody is told who holds the streams")
	}
	mu.Unlock()

	c := s.console
	first := &plan{id: "ada's", session: "ada", person: "ada", made: time.Now()}
	c.keepPlan(first)
	for i := range 3 * mostPlans {
		c.keepPlan(&plan{id: fmt.Sprint(i), session: "bob", person: "bob", made: time.Now()})
	}
	if c.plan("ada's", "ada") == nil || len(c.plans) > mostOwn+1 {
		t.Errorf("%d plans are kept, and ada's is among them: %t", len(c.plans), c.plan("ada's", "ada") != nil)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A body that does not come holds a connection for some seconds only.
func TestBounds_BodiesHaveADeadline(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /console/plan HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"+
		"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=")
	if err := conn.SetReadDeadline(time.Now().Add(10 * formTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); err != nil { // the server has closed it
		t.Error(err)
	}
}

// A busyStore takes a moment for each page, and says how long it was asked in sum.
type busyStore struct {
	*pagedStore
	busy atomic.Int64
}

func (b *busyStore) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	const long = 50 * time.Millisecond
	b.busy.Add(int64(long))
	time.Sleep(long)
	return b.pagedStore.List(ctx, f, after)
}

// slow is a console, and a store with so many failures that takes a moment for each.
func slow(t *testing.T, failures int) (*Console, *busyStore) {
	t.Helper()
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{TB: t, store: &pagedStore{Memory: memory, page: 1}}
	for n := range failures {
		s.finishes(key(numbered("m", n)), dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "refused"})
	}
	store := &busyStore{pagedStore: s.store}
	c, err := New(Config{Stores: []Store{{Name: "records", Inspector: store}}, Findings: func(
		context.Context) ([]health.Finding, error) {
		return nil, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c, store
}

// What a console shows first is not a small part of what there is, if that can be had within seconds.
func TestRun_FirstPassTakesNoPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, store := slow(t, 60)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(mostFirst)
		if s := c.now().store("records"); !s.all() || s.Failures.N != 60 {
			t.Errorf("%d of 60 failures were seen after %v", s.Failures.N, mostFirst)
		}
		before := store.busy.Load()
		time.Sleep(50 * time.Second) // then it is gone through as slowly as ever
		if busy := time.Duration(store.busy.Load() - before); busy > 5*time.Second {
			t.Errorf("the store was busy for %v of 50s", busy)
		}
		stop()
		<-ended
	})
}

// Somebody who refreshes without end makes a store at most a twentieth busier.
func TestRefresh_WithoutEndCostsLittle(t *testing.T) {
	t.Parallel()
	shares := [2]float64{}
	for i, refreshes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, store := slow(t, 120)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- c.Run(ctx) }()
			const long = 5 * time.Minute
			for began := time.Now(); time.Since(began) < long; time.Sleep(250 * time.Millisecond) {
				if c.asked.Store(time.Now().UnixMilli()); refreshes {
					c.hurry("records")
				}
			}
			stop()
			<-ended
			shares[i] = float64(store.busy.Load()) / float64(long)
		})
	}
	t.Logf("busy %.3f of the time without, and %.3f with", shares[0], shares[1])
	if shares[1]-shares[0] > 0.05 {
		t.Errorf("it is busy %.3f of the time, and %.3f while somebody refreshes", shares[0], shares[1])
	}
}

// A large store is not counted without a pause for as long as that takes.
func TestRefresh_OfALargeStoreIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &storeScan{notes: &Notes{}, asked: true}
		w.hurry()
		time.Sleep(mostHurry)
		w.calm()
		w.asked = true
		if w.hurry(); w.hurried {
			t.Error("it is hurried again at once")
		}
		time.Sleep(hurryRest*mostHurry + time.Second)
		if w.hurry(); !w.hurried {
			t.Error("it is never hurried again")
		}
	})
}

func TestRefresh_HasABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &storeScan{notes: &Notes{}}
		w.again()
		memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		passes, hurried := 0, time.Duration(0)
		for began := time.Now(); time.Since(began) < time.Hour; {
			w.asked = true
			w.hurry()
			before := w.hurried
			time.Sleep(time.Second) // what a pass takes
			if before {
				hurried += time.Second
			}
			if err := w.fails(t.Context(), memory); err != nil {
				t.Fatal(err)
			}
			if w.again(); before && !w.hurried {
				passes++
			}
		}
		if passes < 10 || hurried > time.Hour/20 {
			t.Errorf("%d passes in an hour, for %v", passes, hurried)
		}
	})
}
