package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
)

func TestScreens_Render(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	s.eventually("failures", "card # refused")
	s.eventually("", "its clock is behind")
	s.eventually("", "Deliveries by outcome")
	for _, page := range screens() {
		status, body := s.get(page)
		if status != http.StatusOK || !strings.Contains(body, `<main id="main"`) ||
			!strings.HasSuffix(body, "</html>") {
			t.Errorf("%s: status %d\n%s", page, status, body)
		}
		for _, broken := range []string{"ZgotmplZ", "<no value>", "%!", "<nil>"} {
			if strings.Contains(body, broken) {
				t.Errorf("%s has %q\n%s", page, broken, body)
			}
		}
	}
	for page, texts := range map[string][]string{
		"": {"Deliveries by outcome", "billing / charge", "card # refused", "its clock is behind", "Running longest"},
		messageLink(key("good")): {"It succeeded", "3 duplicates", "written to the outbox shop", "published to orders",
			"https://traces.example/0af7651916cd43dd8448eb211c80319c", "https://traces.example/?id=good", "out-1",
			"The same ID in other handlers", "billing / mail", "secret-result"},
		messageLink(key("bad")): {"card 4711 refused", `id="do-rerun"`, `id="do-redrive"`,
			`id="do-archive"`, `id="do-forget"`},
		messageLink(key("doubtful")):               {`id="do-complete"`},
		messageLink(key("busy")):                   {"billing-1:417", "There is nothing to do about it now"},
		messageLink(key("gone")):                   {"There is no record of it"},
		"messages?id=nobody":                       {"No record of this message"},
		"messages?state=retryable":                 {"later", "connection refused"},
		"failures":                                 {"card # refused", "no answer from the bank", "dead.billing"},
		"failures?pattern=card+%23+refused&list=1": {">bad<", ">bad-2<", `id="all-rerun"`},
		"failures?letters=dead.billing":            {"at=17", "Redrive"},
		"letter?at=17":                             {"secret-header", "secret-payload"},
		"outbox":                                   {"row-dead", "too large", "orders"},
		"health":                                   {"its clock is behind"},
	} {
		_, body := s.get(page)
		for _, text := range texts {
			if !strings.Contains(body, text) {
				t.Errorf("%s has no %q in\n%s", page, text, body)
			}
		}
	}
}

// Empty states say what to do.
func TestScreens_WithoutSources(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { *c = Config{Authorize: ViewOnly} })
	for page, text := range map[string]string{
		"": "Set Config.Stores", "messages": "Set Config.Stores", "failures": "Set Config.DeadLetters",
		"outbox": "Set Config.Outboxes", "health": "Set Config.Findings",
	} {
		if status, body := s.get(page); status != http.StatusOK || !strings.Contains(body, text) {
			t.Errorf("%s: status %d, and no %q in\n%s", page, status, text, body)
		}
	}
	for page, want := range map[string]int{
		"message?key=a:b:c:d": 404, "letter?id=x": 404, "plan?id=x": 404, "task?id=x": 404, "nothing": 404,
		"live?screen=overview": 503, "console.go": 404, "act": 405,
	} {
		if status, _ := s.get(page); status != want {
			t.Errorf("%s: status %d, want %d", page, status, want)
		}
	}
}

func TestScreens_WithoutRecords(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).runs()
	for page, text := range map[string]string{
		"": "No record yet", "messages": "No record yet", "failures": "Nothing has failed", "outbox": "No dead row",
	} {
		s.eventually(page, text)
	}
	if status, body := s.get("messages?state=sleeping"); status != http.StatusBadRequest ||
		!strings.Contains(body, "want one of") {
		t.Errorf("a wrong state: status %d\n%s", status, body)
	}
	if status, _ := s.get("messages?since=yesterday"); status != http.StatusBadRequest {
		t.Errorf("a wrong time: status %d", status)
	}
}

// A source that does not answer is a finding, and the pages say so.
func TestScreens_SourceIsDown(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused <b>")
	s := newSite(t, func(c *Config) {
		c.Counters = func(context.Context) ([]Counter, error) { return nil, down }
		c.Findings = func(context.Context) ([]health.Finding, error) { return nil, down }
		c.Stores[0].Inspector = downStore{c.Stores[0].Inspector.(*pagedStore), down}
	}).runs()
	for _, page := range []string{"", "health"} {
		body := s.eventually(page, "connection refused &lt;b&gt;")
		if strings.Contains(body, down.Error()) {
			t.Errorf("%s has the error as markup", page)
		}
	}
	if status, body := s.get("messages"); status != http.StatusBadGateway ||
		!strings.Contains(body, "connection refused") {
		t.Errorf("status %d\n%s", status, body)
	}
}

type downStore struct {
	*pagedStore
	err error
}

func (d downStore) List(context.Context, dedupstore.Filter, string) (dedupstore.Page, error) {
	return dedupstore.Page{}, d.err
}

// All that a page needs is in its HTML: no script or style stands in it, and times have a text.
func TestScreens_ReadWithoutJavaScript(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill().runs()
	s.eventually("failures", "card # refused")
	inline := regexp.MustCompile(`(?i)<script(?: [^>]*)?>[^<]|<style|\sstyle="|\son\w+="|javascript:`)
	empty := regexp.MustCompile(`<time [^>]*></time>`)
	for _, page := range screens() {
		_, body := s.get(page)
		if found := inline.FindString(body); found != "" {
			t.Errorf("%s has %q", page, found)
		}
		if empty.MatchString(body) {
			t.Errorf("%s has a time without a text", page)
		}
		if !strings.Contains(body, `<a href="messages"`) || strings.Contains(body, `method="dialog"`) &&
			!strings.Contains(body, "<dialog") {
			t.Errorf("%s has no navigation", page)
		}
	}
}

func TestHandler_Headers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, page := range []string{"", "nothing", "console.css", "console.js", "console.svg"} {
		answer, err := s.browser.Get(s.url(page))
		if err != nil {
			t.Fatal(err)
		}
		_, body := read(t, answer)
		if got := answer.Header.Get("Content-Security-Policy"); got != policy {
			t.Errorf("%s: policy %q", page, got)
		}
		if answer.Header.Get("X-Content-Type-Options") != "nosniff" || body == "" {
			t.Errorf("%s: headers %v", page, answer.Header)
		}
	}
}

// It mounts under any prefix, stripped or not, and behind a proxy that strips one. All links stay there.
func TestHandler_UnderPrefixes(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	s.eventually("failures", "card # refused")
	for name, handler := range map[string]http.Handler{
		"/":         s.console.Handler(),
		"/console/": http.StripPrefix("/console", s.console.Handler()),
		"/a/b/c/":   s.console.Handler(),
		"/strip/":   http.StripPrefix("/strip/", s.console.Handler()),
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.Handle(name, handler)
			if name == "/console/" {
				mux.Handle("/console", handler)
			}
			server := httptest.NewServer(mux)
			defer server.Close()
			crawl(t, server.URL, name)
			if name == "/console/" {
				crawl(t, server.URL, "/console")
			}
			to, err := url.Parse(server.URL + name)
			if err != nil {
				t.Fatal(err)
			}
			proxy := httptest.NewServer(http.StripPrefix("/ops", &httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
			}))
			defer proxy.Close()
			crawl(t, proxy.URL, "/ops/")
		})
	}
}

var links = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)

// crawl follows all links from a page.
func crawl(t *testing.T, server, prefix string) {
	t.Helper()
	browser := newBrowser(t)
	defer browser.CloseIdleConnections()
	seen, left := map[string]bool{}, []string{server + prefix}
	within := server + strings.TrimSuffix(prefix, "/") + "/"
	for len(left) > 0 {
		at := left[0]
		left = left[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		answer, err := browser.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		status, body := read(t, answer)
		if status != http.StatusOK {
			t.Errorf("%s: status %d", at, status)
		}
		if !strings.HasPrefix(answer.Request.URL.String(), within) {
			t.Errorf("%s leads out, to %s", at, answer.Request.URL)
		}
		if !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			continue
		}
		for _, m := range links.FindAllStringSubmatch(body, -1) {
			ref := strings.ReplaceAll(m[1], "&amp;", "&")
			to, err := answer.Request.URL.Parse(ref)
			switch {
			case err != nil:
				t.Errorf("%s has the link %q", at, ref)
			case ref == "act" || ref == "plan" || ref == "refresh" || strings.HasPrefix(ref, "#"):
			case to.Scheme == "data" || to.Host == "traces.example":
			default:
				to.Fragment = ""
				left = append(left, to.String())
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d pages were found from %s", len(seen), prefix)
	}
}

// The console knows contracts only: no broker, no Watermill, no store.
func TestImports_NoBrokerAndNoStore(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range bytes.Lines(out) {
		path := strings.TrimSpace(string(name))
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") || path == "github.com/google/uuid" ||
			strings.HasPrefix(path, "go.opentelemetry.io/") || strings.HasPrefix(path, "github.com/gowebpki/jcs") ||
			strings.HasPrefix(path, "github.com/cespare/xxhash/") || strings.HasPrefix(path, "github.com/go-logr/") ||
			strings.HasPrefix(path, "github.com/sony/gobreaker/") {
			continue
		}
		own, ok := strings.CutPrefix(path, "github.com/oncemill/oncemill")
		own = strings.TrimPrefix(own, "/")
		switch {
		case !ok:
			t.Errorf("the console needs %s", path)
		case strings.HasPrefix(own, "transport/"), strings.HasPrefix(own, "dedupstore/"),
			strings.HasPrefix(own, "outbox/"):
			t.Errorf("the console needs %s", path)
		}
	}
}

func TestNew_RefusesWrongConfig(t *testing.T) {
	t.Parallel()
	box := &toyBox{}
	for want, c := range map[string]Config{
		"without a name":          {Outboxes: []Outbox{{Inspector: box}}},
		`two with the name "a"`:   {Outboxes: []Outbox{{"a", box}, {"a", box}}},
		`has "a" without a sourc`: {DeadLetters: []DeadLetterTopic{{Name: "a"}}},
		"has one without a name":  {Stores: []Store{{}}},
		"Config.Every":            {Every: time.Millisecond},
		"Config.Rate":             {Rate: -1},
	} {
		var wrong *dedupstore.InvalidError
		if _, err := New(c); !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}
