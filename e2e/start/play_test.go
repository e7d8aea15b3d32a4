package start_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// plays follows a page to its end. Each step is a program that does as printed, made of what the page shows up to
// there. The servers and their names are those of the test. Handled is how many deliveries the first worker has
// finished, or 0 if it has others in hand.
func plays(t *testing.T, name string, programs int, handled func() uint64, env ...string) {
	t.Helper()
	testserver.NeedProgram(t, "curl", "Debian: apt-get install curl")
	port, err := testserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s := &service{folder: newFolder(t, "shop"), handled: handled}
	s.env = append(append(s.env, "LISTEN="+testserver.Loopback(port)), env...)

	page := blocks(t, name)
	if page[0].kind != "sh" || !strings.HasPrefix(page[0].text, "git clone ") {
		t.Fatalf("the page begins with\n%s", page[0].text)
	}
	page = page[1:]
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
		case b.kind == "sh" && (strings.HasPrefix(b.text, "go ") || strings.HasPrefix(b.text, "./")):
			s.stop()
			s.stopped.Wait()
			s.shows(b.text, s.sh(b.text), prints)
		case b.kind == "sh":
			s.shows(b.text, s.sh(b.text), prints)
		}
	}
	s.stop()
	s.sh("go vet .")
	if s.starts < programs {
		t.Errorf("the page starts %d programs, want at least %d", s.starts, programs)
	}
}

// A service is what the page has made so far.
type service struct {
	folder
	handled func() uint64
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
