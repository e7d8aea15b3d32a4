package console

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// raw asks for a path as it is, with none of the mending that clients do, and returns what is answered.
func (s *site) raw(method, path string, headers ...string) (answer *http.Response) {
	s.Helper()
	at := s.server.Listener.Addr().String()
	conn, err := (&net.Dialer{}).DialContext(s.Context(), "tcp", at)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() })
	lines := append([]string{method + " " + path + " HTTP/1.1", "Host: " + at, "Connection: close"}, headers...)
	if _, err := conn.Write([]byte(strings.Join(lines, "\r\n") + "\r\n\r\n")); err != nil {
		s.Fatal(err)
	}
	r, _ := http.NewRequestWithContext(context.WithoutCancel(s.Context()), method, "/", http.NoBody)
	if answer, err = http.ReadResponse(bufio.NewReader(conn), r); err != nil {
		s.Fatal(err)
	}
	return answer
}

// No path leads to a file, to another host, or into the headers of an answer.
func TestAttack_Paths(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill()
	s.server.Config.Handler = s.console.Handler() // without a mux, which mends paths
	for _, path := range []string{
		"/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", `/..\..\etc\passwd`, "/console.css%00.html", "/console.go",
		"/console.%2e%2e%2fconfig.go", "//evil.example", `/\evil.example`, "//evil.example//",
		"/messages%0d%0aX-Evil:%201", "/task?id=%0d%0aX-Evil:%201", "/plan?id=//evil.example",
		"/failures?in=//evil.example&list=1", "/outbox?in=%0d%0aX-Evil:%201", "/messages?after=%0d%0a'--&in=records",
	} {
		answer := s.raw(http.MethodGet, path)
		status, body := read(t, answer)
		if to := answer.Header.Get("Location"); to != "" || answer.Header.Get("X-Evil") != "" || status >= 500 {
			t.Errorf("%q: status %d, %v", path, status, answer.Header)
		}
		if strings.Contains(body, "root:") || strings.Contains(body, "package console") {
			t.Errorf("%q shows a file:\n%.300s", path, body)
		}
	}
}

// Nothing is asked for by other methods, nor done by a form in another form.
func TestAttack_MethodsAndForms(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	before := s.state()
	for _, page := range []string{"", "messages", "plan", "act", "stop", "refresh", "live"} {
		for _, method := range []string{"PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "PROPFIND"} {
			if status, body := read(t, s.raw(method, "/console/"+page)); status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: status %d\n%s", method, page, status, body)
			}
		}
	}
	form := url.Values{"do": {"forget"}, "in": {"records"}, "key": {key("good").String()}, "token": {s.token()}}
	for name, send := range map[string]func() (*http.Response, error){
		"JSON": func() (*http.Response, error) {
			return s.browser.Post(s.url("plan"), "application/json", strings.NewReader(
				`{"do":"forget","in":"records","key":"`+key("good").String()+`","token":"`+form.Get("token")+`"}`))
		},
		"text": func() (*http.Response, error) {
			return s.browser.Post(s.url("plan"), "text/plain", strings.NewReader(form.Encode()))
		},
		"a link": func() (*http.Response, error) {
			return s.browser.Post(s.url("plan?"+form.Encode()), "application/x-www-form-urlencoded", http.NoBody)
		},
	} {
		answer, err := send()
		if err != nil {
			t.Fatal(err)
		}
		if status, body := read(t, answer); status != http.StatusForbidden {
			t.Errorf("%s: status %d\n%s", name, status, body)
		}
	}
	if after := s.state(); after != before {
		t.Errorf("something has changed:\n%s", after)
	}
}

// A reason begins no line of an event stream, whatever ends a line.
func TestAttack_EventStream(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything })
	for i, end := range []string{"\n", "\r", "\r\n", "\u2028", "\u0085"} {
		s.finishes(key(numbered("m", i)), dedupstore.Outcome{
			Kind: dedupstore.Failed, Reason: "refused" + end + end + "event: evil" + end + "data: <b>" + end + end,
		})
	}
	s.runs()
	s.eventually("failures", "evil")
	answer, err := s.browser.Get(s.url("live?screen=failures&in=records"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	evil := false
	for lines.Scan() && lines.Text() != "" {
		evil = evil || strings.Contains(lines.Text(), "event: evil")
		if text := lines.Text(); !strings.HasPrefix(text, "data: ") || strings.ContainsAny(text, "\r") {
			t.Errorf("a line is %q", text)
		}
	}
	if !evil || lines.Err() != nil {
		t.Errorf("the reason is not told: %v", lines.Err())
	}
}

// Pages are framed by nobody, kept by nobody, and tell nobody where they were.
func TestAttack_Frames(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill()
	for _, page := range []string{"", "nothing", messageLink(key("good"))} {
		answer, err := s.browser.Get(s.url(page))
		if err != nil {
			t.Fatal(err)
		}
		read(t, answer)
		for name, want := range map[string]string{
			"Content-Security-Policy": "frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
		} {
			if got := answer.Header.Get(name); !strings.Contains(got, want) {
				t.Errorf("%s: %s is %q", page, name, got)
			}
		}
	}
}
