package start_test

import (
	"context"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

// Each step of docs/start.md is a program that does as printed, made of what the page shows up to there.
func TestStart_EachStepDoesAsPrinted(t *testing.T) {
	t.Parallel()
	testserver.NeedProgram(t, "curl", "Debian: apt-get install curl")
	database, err := url.Parse(postgrestest.Shared(t).NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	query := database.Query()
	query.Set("pool_max_conns", "40")
	database.RawQuery = query.Encode()
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	server := natstest.Start(t)
	s := &service{folder: newFolder(t, "shop"), js: server.JetStream()}
	s.env = append(s.env,
		"DATABASE_URL="+database.String(), "NATS_URL="+server.URL(), "LISTEN="+testserver.Loopback(port))

	page := blocks(t, "docs/start.md")
	if page[0].kind != "sh" || !strings.HasPrefix(page[0].text, "git clone ") {
		t.Fatalf("the page begins with\n%s", page[0].text)
	}
	page = page[1:] // the servers and their names are those of the test
	for i, b := range page {
		prints := ""
		if i+1 < len(page) && page[i+1].kind == "" {
			prints = page[i+1].text
		}
		args, runs := strings.CutPrefix(b.text, "go run .")
		switch {
		case b.kind == "go" || b.kind == "diff":
			s.stop()
			s.paste(b)
		case b.kind == "sh" && runs:
			s.stop()
			s.start(strings.Fields(args), prints)
		case b.kind == "sh" && strings.HasPrefix(b.text, "go "):
			s.stop()
			s.stopped.Wait()
			s.shows(b.text, s.sh(b.text), prints)
		case b.kind == "sh":
			s.shows(b.text, s.sh(b.text), prints)
		}
	}
	s.stop()
	s.sh("go vet .")
	if s.starts < 6 {
		t.Errorf("the page starts %d programs, want at least 6", s.starts)
	}
}

// A service is what the page has made so far.
type service struct {
	folder
	js      jetstream.JetStream
	starts  int
	process *testserver.Process // nil: it is stopped, or told to
	prints  string              // what it has to print until then
	stopped sync.WaitGroup
}

// start runs the program. With an argument it sends two messages.
func (s *service) start(args []string, prints string) {
	s.t.Helper()
	s.starts++
	s.sh("go build -o shop .") // as the page does in the end
	s.stopped.Wait()
	before := s.handled()
	sends := len(args) > 0
	args = slices.Concat(s.env, []string{s.dir + "/shop"}, args)
	process, err := testserver.StartProgram(s.t.TempDir(), "env", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = process.Kill() })
	s.process, s.prints, s.ended = process, prints, process.Ended()
	if sends {
		s.until(func() bool { return s.handled() == before+2 })
	} else {
		s.sh("until curl -s $LISTEN; do sleep 0.01; done >/dev/null")
	}
}

// handled is how many deliveries there were, if all are acknowledged; else, or without a consumer, 0.
func (s *service) handled() uint64 {
	cons, err := s.js.Consumer(s.t.Context(), "ORDERS", "billing")
	if err != nil {
		return 0
	}
	info := cons.CachedInfo()
	if info.NumPending > 0 || info.NumAckPending > 0 {
		return 0
	}
	return info.Delivered.Consumer
}

// until waits for what the running program does.
func (s *service) until(done func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testserver.WaitLimit)
	defer cancel()
	err := testserver.Until(ctx, func() error {
		switch {
		case done():
			return nil
		case closed(s.ended):
			cancel()
			return errors.New("it has ended")
		}
		return errors.New("it does not do what the page says")
	})
	if err != nil {
		s.t.Fatalf("%v: it prints\n%s\nthe page shows\n%s", err, s.process.Output(), s.prints)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stop waits for what the program has to print, and tells it to end. Until the next one starts it drains, and prints
// nothing more.
func (s *service) stop() {
	s.t.Helper()
	if s.process == nil {
		return
	}
	process, prints := s.process, s.prints
	s.until(func() bool { return printed(process) == prints })
	s.process, s.ended = nil, nil
	s.stopped.Go(func() {
		if err := process.Stop(); err != nil || process.ExitCode() != 0 {
			s.t.Errorf("it is stopped: %v, exit status %d", err, process.ExitCode())
		}
		s.shows("the program ", printed(process), prints)
	})
}

var infoLine = regexp.MustCompile(`(?m)^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d INFO .*\n`)

// printed is what a process has written, without the log's lines about what begins and ends.
func printed(p *testserver.Process) string { return infoLine.ReplaceAllString(p.Output(), "") }
