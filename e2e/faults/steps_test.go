package faults_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A stepsTask is what a process does with messages of three steps, until it kills itself.
type stepsTask struct {
	Store   string   // a URL of Redis, PostgreSQL or NATS
	IDs     []string // of the messages
	Journal string   // a file
	Odds    int      // it is killed at one of so many points; 0: never
}

// A stepsLine of the journal says that a step's effect happened, that the handler got past the step, or that a message
// is done.
type stepsLine struct {
	What, ID, Step string
	Process        int
}

// TestSteps_Process is no test, but what [TestSteps_KilledAnywhereRepeatNoOtherStep] runs in processes.
func TestSteps_Process(t *testing.T) {
	text, ok := strings.CutPrefix(flag.Arg(0), "steps=")
	if !ok {
		t.Skip("another test runs it")
	}
	var j stepsTask
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatal(err)
	}
	store, closeStore, err := openForSteps(t.Context(), j.Store)
	if err != nil {
		t.Fatal(err)
	}
	defer closeStore()
	guard, err := oncemill.NewGuard(store, oncemill.Policy{
		Lease: 3 * time.Second, MaxAttempts: 1000, Logger: slog.New(slog.DiscardHandler),
		Backoff: oncemill.Backoff{Min: time.Millisecond, Max: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	journal, err := os.OpenFile(j.Journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	p := &stepsProcess{odds: j.Odds, journal: journal}
	var all sync.WaitGroup
	for _, id := range j.IDs {
		all.Go(func() {
			call := oncemill.Call{MaxWait: time.Minute, Key: dedupstore.Key{
				Tenant: "default", Group: "shop", Handler: "order", ID: id,
			}}
			for {
				_, err := oncemill.Do(t.Context(), guard, call, func(ctx context.Context) (string, error) {
					return p.handle(ctx, id)
				})
				if err == nil {
					break
				}
				fmt.Fprintln(os.Stderr, id, err) // such as a claim that got no answer in time
				testserver.Pause()
			}
			p.write("done", id, "")
		})
	}
	all.Wait()
}

type stepsProcess struct {
	odds    int
	journal *os.File
}

var threeSteps = []string{"charge", "parcel", "mail"}

// handle is the program of docs/steps.md.
func (p *stepsProcess) handle(ctx context.Context, id string) (result string, err error) {
	for _, step := range threeSteps {
		p.point() // before it
		before := result
		result, err = oncemill.Step(ctx, step, func(ctx context.Context) (string, error) {
			p.point() // before its effect
			p.write("effect", id, step)
			p.point() // in its own gap
			return before + "/" + step, nil
		})
		if err != nil {
			return "", err
		}
		p.write("past", id, step)
		p.point() // after it
	}
	if want := "/charge/parcel/mail"; result != want {
		p.write("wrong", id, result)
	}
	return result, nil
}

// point is where the process may be killed.
func (p *stepsProcess) point() {
	if p.odds > 0 && rand.N(p.odds) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// write writes a line in one piece: what was written outlives the process.
func (p *stepsProcess) write(what, id, step string) {
	line, err := json.Marshal(stepsLine{what, id, step, os.Getpid()})
	if err == nil {
		_, err = p.journal.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

func openForSteps(ctx context.Context, url string) (dedupstore.Store, func(), error) {
	switch {
	case strings.HasPrefix(url, "redis:"):
		rdb := redis.NewClient(&redis.Options{Addr: strings.TrimPrefix(url, "redis:")})
		store, err := redisstore.New(rdb, redisstore.Config{})
		return store, func() { rdb.Close() }, err
	case strings.HasPrefix(url, "nats:"):
		nc, err := nats.Connect(url, nats.Timeout(waitLimit))
		if err != nil {
			return nil, nil, err
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, nil, err
		}
		store, err := natskv.New(js, natskv.Config{Logger: slog.New(slog.DiscardHandler)})
		return store, nc.Close, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	store, err := pgstore.New(pool, pgstore.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = store.Migrate(ctx)
	}
	return store, pool.Close, err
}

// Full: 300 kills over each store.
func TestSteps_KilledAnywhereRepeatNoOtherStep(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"redis":      func(t *testing.T) string { return "redis:" + redistest.Start(t, "--appendonly", "yes").Addr },
		"postgresql": func(t *testing.T) string { return postgrestest.Shared(t).NewDatabase(t).DSN() },
		"natskv": func(t *testing.T) string {
			server := natstest.Start(t)
			createStream(t, server.JetStream(), natskv.Bucket("oncemill", 1))
			return server.URL()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &stepsShop{T: t, url: start(t), journal: filepath.Join(t.TempDir(), "journal")}
			if err := os.WriteFile(s.journal, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for kills := full(300, 4); len(s.killed) < kills; {
				s.round(12)
			}
			s.round(0)
			s.balance()
		})
	}
}

// A stepsShop runs processes, one after the other, and keeps their books.
type stepsShop struct {
	*testing.T
	url, journal string
	made         int // messages
	open         []string
	killed       []int
}

// round runs a process with the messages that are not done, and new ones.
func (s *stepsShop) round(odds int) {
	for n := 0; n < 2 && len(s.open) < 8; n++ {
		s.made++
		s.open = append(s.open, fmt.Sprint("order-", s.made))
	}
	text, err := json.Marshal(stepsTask{s.url, s.open, s.journal, odds})
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), os.Args[0], "-test.run=^TestSteps_Process$", "-test.count=1",
		"steps="+string(text))
	said := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	err = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err != nil && (!ok || status.Signal() != syscall.SIGKILL) {
		s.Fatalf("a process ended with %v:\n%s", err, said)
	}
	if err != nil {
		s.killed = append(s.killed, cmd.Process.Pid)
	}
	done := map[string]bool{}
	for _, l := range s.lines() {
		done[l.ID] = done[l.ID] || l.What == "done"
	}
	s.open = slices.DeleteFunc(s.open, func(id string) bool { return done[id] })
}

func (s *stepsShop) lines() (all []stepsLine) {
	text, err := os.ReadFile(s.journal)
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var l stepsLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			s.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// balance wants each step's effect once, and each further one explained by a kill inside that step's own gap.
func (s *stepsShop) balance() {
	extras, problems := explainSteps(s.lines(), s.killed, s.made)
	for _, p := range problems {
		s.Error(p)
	}
	s.Logf("%d messages, %d kills, %d effects repeated, each by a kill inside its step's own gap", s.made, len(s.killed),
		extras)
}

// explainSteps counts the effects beyond the first of each step, and says what is not explained.
func explainSteps(lines []stepsLine, killed []int, messages int) (extras int, problems []string) {
	type at struct{ id, step string }
	effects, past, done := map[at][]int{}, map[at]map[int]bool{}, map[string]bool{}
	for _, l := range lines {
		of := at{l.ID, l.Step}
		switch l.What {
		case "effect":
			effects[of] = append(effects[of], l.Process)
		case "past":
			if past[of] == nil {
				past[of] = map[int]bool{}
			}
			past[of][l.Process] = true
		case "done":
			done[l.ID] = true
		default:
			problems = append(problems, fmt.Sprintf("message %s: %s %q", l.ID, l.What, l.Step))
		}
	}
	for n := range messages {
		id := fmt.Sprint("order-", n+1)
		if !done[id] {
			problems = append(problems, fmt.Sprintf("message %s is lost", id))
		}
		for _, step := range threeSteps {
			of := at{id, step}
			by := effects[of]
			if len(by) == 0 {
				problems = append(problems, fmt.Sprintf("message %s: step %s has no effect", id, step))
				continue
			}
			seen := map[int]bool{}
			for _, process := range by[:len(by)-1] { // another effect followed: it died before it could record this one
				extras++
				if !slices.Contains(killed, process) || past[of][process] || seen[process] {
					problems = append(problems, fmt.Sprintf("message %s: step %s was repeated, and process %d was not "+
						"killed in its gap", id, step, process))
				}
				seen[process] = true
			}
		}
	}
	return extras, problems
}

func TestSteps_UnexplainedEffectsAreNoticed(t *testing.T) {
	t.Parallel()
	good := []stepsLine{
		{"effect", "order-1", "charge", 1}, {"effect", "order-1", "charge", 2}, {"past", "order-1", "charge", 2},
		{"effect", "order-1", "parcel", 2}, {"effect", "order-1", "mail", 2}, {"done", "order-1", "", 2},
	}
	for name, c := range map[string]struct {
		lines  []stepsLine
		killed []int
		extras int
		bad    bool
	}{
		"killed in the gap":  {good, []int{1}, 1, false},
		"nobody was killed":  {good, nil, 1, true},
		"killed after it":    {append(slices.Clone(good), stepsLine{"past", "order-1", "charge", 1}), []int{1}, 1, true},
		"twice in a process": {append(slices.Clone(good), good[0]), []int{1}, 2, true},
		"no effect":          {slices.Delete(slices.Clone(good), 3, 4), []int{1}, 1, true},
		"lost":               {good[:5], []int{1}, 1, true},
		"another result":     {append(slices.Clone(good), stepsLine{"wrong", "order-1", "/mail", 2}), []int{1}, 1, true},
	} {
		if extras, problems := explainSteps(c.lines, c.killed, 1); extras != c.extras || len(problems) > 0 != c.bad {
			t.Errorf("%s: %d repeated, %q", name, extras, problems)
		}
	}
}
