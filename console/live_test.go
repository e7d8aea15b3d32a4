package console

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// 200 streams cost one sample each time, and nothing is left when they have closed: leaktest looks for goroutines.
func TestLive_200StreamsCostOneSample(t *testing.T) {
	t.Parallel()
	const streams = 200
	var samples atomic.Int64
	s := newSite(t, func(c *Config) {
		c.Counters = func(context.Context) ([]Counter, error) {
			samples.Add(1)
			return []Counter{{"billing", "charge", "claimed", "", samples.Load()}}, nil
		}
	}).fill().runs()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all, ready sync.WaitGroup
	var events atomic.Int64
	counting := make(chan struct{})
	for range streams {
		ready.Add(1)
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("live?screen=overview"), http.NoBody)
			if err != nil {
				t.Error(err)
			}
			answer, err := s.browser.Do(r)
			if err != nil {
				t.Error(err)
				ready.Done()
				return
			}
			defer answer.Body.Close()
			if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
				t.Errorf("status %d, %s", answer.StatusCode, kind)
			}
			lines := bufio.NewScanner(answer.Body)
			lines.Buffer(nil, 1<<20)
			for first := true; lines.Scan(); {
				if lines.Text() != "" {
					continue
				}
				if first {
					first = false
					ready.Done()
				}
				select {
				case <-counting:
					events.Add(1)
				default:
				}
			}
		})
	}
	ready.Wait()
	lists, before, began := s.store.lists(), samples.Load(), time.Now()
	close(counting)
	for events.Load() < 3*streams {
		time.Sleep(5 * time.Millisecond)
	}
	beats := int64(time.Since(began)/s.console.config.Every) + 2
	if n := samples.Load() - before; n > beats {
		t.Errorf("%d samples in %d beats", n, beats)
	}
	if n := int64(s.store.lists() - lists); n > 2*beats { // one of failures and one of runs
		t.Errorf("%d lists in %d beats", n, beats)
	}
	stop()
	all.Wait()
	for end := time.Now().Add(5 * time.Second); s.console.streams.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if n := s.console.streams.Load(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

// Parameters that a screen does not have cost no memory.
func TestLive_AnyParametersMakeOnePart(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Every = time.Hour }).fill().runs()
	for i := range 50 {
		for _, screen := range []string{"overview", "failures", "task"} {
			ctx, leave := context.WithCancel(t.Context())
			at := s.url(fmt.Sprintf("live?screen=%s&id=%d&other=%d", screen, i, i))
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := s.browser.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if found := answer.StatusCode == http.StatusOK; found != (screen != "task") {
				t.Errorf("%s: status %d", screen, answer.StatusCode)
			}
			_, _ = bufio.NewReader(answer.Body).ReadString('\n')
			leave()
			answer.Body.Close()
		}
	}
	snap := s.console.now()
	snap.mu.Lock()
	defer snap.mu.Unlock()
	if n := len(snap.parts); n != 2 {
		t.Errorf("%d parts, want 2", n)
	}
}

// Each screen's stream sends the same part that its page has.
func TestLive_EachScreen(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill().runs()
	s.eventually("failures", "card # refused")
	for screen, text := range map[string]string{
		"overview": "Deliveries by outcome", "failures&in=records": "card # refused", "outbox&in=shop": "Topics",
		"health": "its clock is behind",
	} {
		ctx, stop := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("live?screen="+screen), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.browser.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		found, lines := false, bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		for !found && lines.Scan() {
			if line := lines.Text(); line != "" && !strings.HasPrefix(line, "data: ") {
				t.Errorf("%s: %q is no line of an event", screen, line)
			}
			found = strings.Contains(lines.Text(), text)
		}
		stop()
		answer.Body.Close()
		if !found {
			t.Errorf("%s has no %q: status %d", screen, text, answer.StatusCode)
		}
	}
	for _, page := range []string{"live", "live?screen=messages", "live?screen=task&id=x", "live?screen=outbox&in=x"} {
		if status, _ := s.get(page); status != http.StatusNotFound {
			t.Errorf("%s: status %d", page, status)
		}
	}
}

func TestRun_EndsStreamsAndRunsOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.console.Run(ctx) }()
	for !s.console.running.Load() {
		time.Sleep(time.Millisecond)
	}
	if err := s.console.Run(ctx); err == nil {
		t.Error("a second Run was allowed")
	}
	answer, err := s.browser.Get(s.url("live?screen=overview"))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if status, body := read(t, answer); status != http.StatusOK || !strings.HasPrefix(body, "data: ") {
		t.Errorf("status %d\n%s", status, body)
	}
	if _, body := s.get(""); !strings.Contains(body, "Nothing is sampled") {
		t.Errorf("the page does not say that the loop has ended:\n%s", body)
	}
}

// While nobody looks, the stores are left alone.
func TestRun_IsIdleWhenNobodyLooks(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill().runs()
	s.eventually("failures", "card # refused")
	if s.console.idle() {
		t.Error("it is idle although somebody looked just now")
	}
	s.console.asked.Store(time.Now().Add(-2 * idleAfter).UnixMilli())
	if !s.console.idle() {
		t.Error("it is not idle")
	}
	lists := s.store.lists()
	beats := s.console.now()
	for range 5 {
		<-beats.next
		beats = s.console.now()
	}
	if n := s.store.lists() - lists; n > 2 { // one step may have been on its way
		t.Errorf("it listed %d times", n)
	}
}
