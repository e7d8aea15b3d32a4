package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/outbox/sqliteoutbox"
)

func TestMain(m *testing.M) {
	if path, is := os.LookupEnv(childEnv); is {
		os.Exit(serveChild(path))
	}
	goleak.VerifyTestMain(m)
}

// start runs the service, and returns its address and how to stop it. Its lease is long, so that a busy machine is not taken
// for a store that is down.
func start(t *testing.T, args ...string) (address string, stop func()) {
	t.Helper()
	args = append([]string{"-lease", "30s"}, args...)
	ctx, cancel := context.WithCancel(t.Context())
	listens, ended := make(chan net.Addr, 1), make(chan int, 1)
	var stderr bytes.Buffer
	env := func(string) string { return "" }
	if slices.Contains(args, "-db") {
		env = readmeEnv
	}
	go func() { ended <- run(ctx, args, env, io.Discard, &stderr, func(a net.Addr) { listens <- a }) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("status %d\n%s", status, &stderr)
		}
	})
	t.Cleanup(stop)
	select {
	case a := <-listens:
		return a.String(), stop
	case status := <-ended:
		ended <- 0
		t.Fatalf("status %d\n%s", status, &stderr)
	case <-time.After(20 * time.Second):
		t.Fatal("it does not listen")
	}
	return "", nil
}

func readmeEnv(name string) string { return readme[name] }

func TestRun_KnownSecretsAreNotTakenForEventsThatAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "hooks.db")
	for missing := range readme {
		env := func(name string) string {
			if name == missing {
				return ""
			}
			return readme[name]
		}
		ctx, cancel := context.WithCancel(t.Context())
		var stderr bytes.Buffer
		status := run(ctx, []string{"-listen", "127.0.0.1:0", "-db", path}, env, io.Discard, &stderr, func(net.Addr) { cancel() })
		cancel()
		if status != 2 || !strings.Contains(stderr.String(), missing) {
			t.Errorf("without %s: status %d, %s", missing, status, &stderr)
		}
	}
}

// blocks are the lines of README.md, and what it says they print.
var blocks = regexp.MustCompile("(?s)```sh\n(.*?)```\n```\n(.*?)```\n")

const printed = "127.0.0.1:8731" // the address in README.md, which is the default of -listen

func TestReadme_LinesDoAsPrinted(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s is missing", tool)
			}
			t.Skipf("%s is missing: the lines of README.md ARE NOT TESTED", tool)
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var address string
	if l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", printed); err == nil {
		l.Close()
		address, _ = start(t)
	} else {
		t.Logf("%v: the lines run with another address", err)
		address, _ = start(t, "-listen", "127.0.0.1:0")
	}
	found := blocks.FindAllStringSubmatch(string(readme), -1)
	if want := strings.Count(string(readme), "```sh\n"); len(found) != want || want < 4 {
		t.Fatalf("%d blocks with what they print, of %d", len(found), want)
	}
	for _, block := range found {
		lines := strings.ReplaceAll(block[1], printed, address)
		out, err := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", lines).CombinedOutput()
		if err != nil || string(out) != block[2] {
			t.Errorf("%s\nprints (%v)\n%s\nwant\n%s", lines, err, out, block[2])
		}
	}
}

// gitHubRequest is signed as GitHub does.
func gitHubRequest(ctx context.Context, address, id, body string) *http.Request {
	mac := hmac.New(sha256.New, []byte("It's a Secret to Everybody"))
	mac.Write([]byte(body))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/hooks/github", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	r.Header.Set("X-GitHub-Delivery", id)
	return r
}

func deliver(t *testing.T, address, id, body string) (status int, says string) {
	t.Helper()
	return fetch(t, gitHubRequest(t.Context(), address, id, body))
}

func fetch(t *testing.T, r *http.Request) (status int, says string) {
	t.Helper()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer.StatusCode, string(text)
}

func publishedLines(t *testing.T, address string) []string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/published", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	_, says := fetch(t, r)
	return strings.Fields(strings.ReplaceAll(strings.TrimSpace(says), " ", "_"))
}

func TestWebhook_RedeliveriesAtOnceEnqueueOne(t *testing.T) {
	t.Parallel()
	defer http.DefaultClient.CloseIdleConnections()
	address, _ := start(t, "-listen", "127.0.0.1:0")
	const events, copies = 5, 12
	var all sync.WaitGroup
	for n := range events * copies {
		all.Go(func() {
			status, says := deliver(t, address, fmt.Sprint("d", n%events), "body")
			if status != http.StatusOK && status != http.StatusServiceUnavailable {
				t.Errorf("status %d: %s", status, says)
			}
		})
	}
	all.Wait()
	for n := range events {
		if status, says := deliver(t, address, fmt.Sprint("d", n), "body"); status != http.StatusOK || !strings.Contains(says, "before") {
			t.Errorf("d%d: status %d: %s", n, status, says)
		}
	}
	if lines := publishedLines(t, address); len(lines) != events {
		t.Errorf("published %q, want %d", lines, events)
	}
}

func TestWebhook_RedeliveryAfterARestartEnqueuesNothing(t *testing.T) {
	t.Parallel()
	defer http.DefaultClient.CloseIdleConnections()
	path := filepath.Join(t.TempDir(), "hooks.db")
	address, stop := start(t, "-listen", "127.0.0.1:0", "-db", path)
	deliver(t, address, "d1", "body")
	if lines := publishedLines(t, address); len(lines) != 1 {
		t.Fatalf("published %q", lines)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	address, _ = start(t, "-listen", "127.0.0.1:0", "-db", path)
	if status, says := deliver(t, address, "d1", "body"); status != http.StatusOK || !strings.Contains(says, "before") {
		t.Errorf("status %d: %s", status, says)
	}
	if lines := publishedLines(t, address); len(lines) != 0 {
		t.Errorf("published %q", lines)
	}
}

func TestWebhook_MistakesAreNamed(t *testing.T) {
	t.Parallel()
	for says, tc := range map[string]struct {
		args   []string
		secret string
		status int
	}{
		"flag provided but not defined":         {[]string{"-x"}, "", 2},
		"unexpected argument \"x\"":             {[]string{"x"}, "", 2},
		"Policy.Lease is 1ms":                   {[]string{"-lease", "1ms"}, "", 1},
		"listen at -listen nowhere":             {[]string{"-listen", "nowhere"}, "", 1},
		"github: webhook: secret 1 has 5 bytes": {nil, "short", 1},
	} {
		var stderr bytes.Buffer
		env := func(name string) string {
			if name == "GITHUB_SECRET" {
				return tc.secret
			}
			return ""
		}
		if status := run(t.Context(), tc.args, env, io.Discard, &stderr, func(net.Addr) {}); status != tc.status || !strings.Contains(stderr.String(), says) {
			t.Errorf("%s: status %d\n%s", tc.args, status, &stderr)
		}
	}
}

func TestWebhook_ForgetsEventsWhenTheirWindowIsOver(t *testing.T) {
	t.Parallel()
	defer http.DefaultClient.CloseIdleConnections()
	path := filepath.Join(t.TempDir(), "hooks.db")
	address, stop := start(t, "-listen", "127.0.0.1:0", "-db", path)
	if status, says := deliver(t, address, "d1", "body"); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, says)
	}
	stop()
	db, err := sqliteoutbox.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `UPDATE oncemill_dedup SET expires_at = 1`); err != nil {
		t.Error(err)
	}
	db.Close()
	start(t, "-listen", "127.0.0.1:0", "-db", path)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(20 * time.Second)
	for {
		if _, claims := audit(t, path); claims == 0 {
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("the record of an event is kept although its window is over")
		}
	}
}
