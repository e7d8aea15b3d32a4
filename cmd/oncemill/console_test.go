package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

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
	all, err := parseLogins("# people\n\nada:the-token-of-ada-\n bob:the:token:of:bob \n")
	if err != nil || len(all) != 2 || all["bob"] != "the:token:of:bob" {
		t.Errorf("%v, %v", all, err)
	}
	for _, text := range []string{"", "# nobody", "ada", "ada:short", ":a-token-without-a-name"} {
		if _, err := parseLogins(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"":    func(*http.Request) {},
		"ada": func(r *http.Request) { r.SetBasicAuth("ada", "the-token-of-ada-") },
		"bob": func(r *http.Request) { r.Header.Set("Authorization", "Bearer the:token:of:bob") },
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
	r.SetBasicAuth("ada", "the:token:of:bob")
	if who := all.who(r); who != "" {
		t.Errorf("the token of another made %q", who)
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
