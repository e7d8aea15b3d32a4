package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/oncemill/oncemill/console"

	"github.com/oncemill/oncemill/internal/testserver"
)

// freePort is a port that nobody listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(port)
}

var (
	tokenOf = regexp.MustCompile(`name="token" value="([^"]+)"`)
	planOf  = regexp.MustCompile(`name="id" value="([^"]+)"`)
)

// browse [-user NAME:TOKEN] [-host HOST] PAGE loads a page of the console, as soon as it answers. With -do ACTION it
// plans the action for a key instead, and confirms it.
func browse(ts *testscript.TestScript, neg bool, args []string) {
	var user, host, do string
	for len(args) > 1 {
		switch args[0] {
		case "-user":
			user = args[1]
		case "-host":
			host = args[1]
		case "-do":
			do = args[1]
		}
		args = args[2:]
	}
	jar, err := cookiejar.New(nil)
	ts.Check(err)
	browser := &http.Client{Jar: jar, Timeout: 20 * time.Second}
	defer browser.CloseIdleConnections()
	ask := func(page string, form url.Values) (status int, body string) {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+ts.Getenv("PORT")+page, http.NoBody)
			ts.Check(err)
			if form != nil {
				r.Method, r.Body = http.MethodPost, io.NopCloser(strings.NewReader(form.Encode()))
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			if name, token, ok := strings.Cut(user, ":"); ok {
				r.SetBasicAuth(name, token)
			}
			r.Host = host
			answer, err := browser.Do(r)
			if err != nil && time.Now().Before(end) { // it does not listen yet
				continue
			}
			ts.Check(err)
			text, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			ts.Check(err)
			return answer.StatusCode, string(text)
		}
	}
	var status int
	var body string
	if do == "" {
		status, body = ask(args[0], nil)
	} else {
		_, body = ask("/health", nil)
		token := tokenOf.FindStringSubmatch(body)
		if token == nil {
			ts.Fatalf("no form in %s", body)
		}
		form := url.Values{"token": {token[1]}, "do": {do}, "key": {args[0]}, "why": {"a test"}}
		status, body = ask("/plan", form)
		if plan := planOf.FindStringSubmatch(body); plan != nil {
			form.Set("id", plan[1])
			for status, body = ask("/act", form); status == http.StatusOK; time.Sleep(20 * time.Millisecond) {
				if strings.Contains(body, "data-announce>done<") {
					break
				}
				status, body = ask("/task?id="+taskOf.FindStringSubmatch(body)[1], nil)
			}
		}
	}
	fmt.Fprint(ts.Stdout(), body)
	if (status != http.StatusOK) != neg {
		ts.Fatalf("status %d\n%s", status, body)
	}
}

var taskOf = regexp.MustCompile(`data-live="live\?id=([A-Z0-9]+)`)

func TestLogins_AreRead(t *testing.T) {
	t.Parallel()
	all, err := parseLogins("# people\n\nada:the-token-of-ada-12345\n bob:operate,payloads:the:token:of:bob:12345 \n")
	if err != nil || len(all) != 2 || all["bob"] != (login{"the:token:of:bob:12345", true, true}) ||
		all["ada"] != (login{token: "the-token-of-ada-12345"}) {
		t.Errorf("%v, %v", all, err)
	}
	for _, text := range []string{
		"", "# nobody", "ada", "ada:short", ":a-token-without-a-name", "eve:11111111111111111111",
		"ada:root:the-token-of-ada-12345",
		"ada:the-token-of-ada-12345\nada:the-token-of-ada-67890",
		"ada:the-token-of-ada-12345\nbob:the-token-of-ada-12345",
	} {
		if _, err := parseLogins(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	for _, role := range []struct {
		login
		action console.Action
		may    bool
	}{
		{login{}, console.View, true}, {login{}, console.Payloads, false}, {login{}, console.Discard, false},
		{login{payloads: true}, console.Payloads, true}, {login{payloads: true}, console.Forget, false},
		{login{operate: true}, console.Forget, true}, {login{operate: true}, console.Payloads, false},
	} {
		if err := role.login.may(role.action); (err == nil) != role.may {
			t.Errorf("%+v: %v", role, err)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"":    func(*http.Request) {},
		"ada": func(r *http.Request) { r.SetBasicAuth("ada", "the-token-of-ada-12345") },
		"bob": func(r *http.Request) { r.Header.Set("Authorization", "Bearer the:token:of:bob:12345") },
	} {
		r, err := http.NewRequest(http.MethodGet, "http://localhost/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		if who := all.who(r); who != name {
			t.Errorf("it is %q, want %q", who, name)
		}
	}
	r, _ := http.NewRequest(http.MethodGet, "http://localhost/", http.NoBody)
	r.SetBasicAuth("ada", "the:token:of:bob:12345")
	if who := all.who(r); who != "" {
		t.Errorf("the token of another made %q", who)
	}
}

// Whoever guesses tokens waits the longer, is told of in the log, and keeps nobody else waiting.
func TestLogins_GuessingIsSlowAndLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := &consoleServer{
			people: logins{"ada": {token: "the-token-of-ada-12345"}}, logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		handler := s.admits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func(token string) int {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.SetBasicAuth("ada", token)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w.Code
		}
		began := time.Now()
		for i := range 100 {
			if status := ask(fmt.Sprint("guess-", i)); status != http.StatusUnauthorized {
				t.Errorf("status %d", status)
			}
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("100 guesses took %v", took)
		}
		began = time.Now()
		var all sync.WaitGroup
		var refused atomic.Int64
		for range 10 * mostWaiting {
			all.Go(func() {
				if ask("guess") == http.StatusTooManyRequests {
					refused.Add(1)
				}
			})
		}
		if status := ask("the-token-of-ada-12345"); status != http.StatusOK || time.Since(began) > 0 {
			t.Errorf("ada gets %d after %v", status, time.Since(began))
		}
		all.Wait()
		if n := refused.Load(); n < 8*mostWaiting {
			t.Errorf("%d of %d were refused at once", n, 10*mostWaiting)
		}
		if n := strings.Count(log.String(), "log-in refused"); n < 10 || n > 30 {
			t.Errorf("%d lines of 600 guesses", n)
		}
	})
}

// The console serves HTTPS, and addresses come from files, with authorities and certificates of one's own.
func TestSettings_SecretsInFiles(t *testing.T) {
	t.Parallel()
	path, empty := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("current: \"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("redis://ada:hunter2@127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := settings{servers: servers{Store: "@" + path}, output: "table", config: empty}
	if err := s.load(); err != nil || s.Store != "redis://ada:hunter2@127.0.0.1:1" {
		t.Errorf("%q, %v", s.Store, err)
	}
	s = settings{servers: servers{Kafka: "@" + path + "-gone"}, output: "table", config: empty}
	if err := s.load(); err == nil {
		t.Error("a file that is not there was read")
	}
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pem := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := tlsOf("--nats", url.Values{"ca": {ca}})
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	for _, wrong := range []url.Values{
		{"ca": {path}}, {"ca": {"gone"}}, {"cert": {ca}}, {"cert": {ca}, "key": {ca}}, {"tls": {"yes"}},
	} {
		if _, err := tlsOf("--nats", wrong); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
	for _, none := range []url.Values{{}, {"tls": {"false"}}} {
		if config, err := tlsOf("--nats", none); config != nil || err != nil {
			t.Errorf("%v: %v, %v", none, config, err)
		}
	}
}

func TestLoopback_IsThisMachine(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"127.0.0.1": true, "localhost": true, "::1": true, "127.1.2.3": true, "0.0.0.0": false, "": false, "::": false,
		"192.168.0.7": false, "example.com": false,
	} {
		if got := loopback(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}
