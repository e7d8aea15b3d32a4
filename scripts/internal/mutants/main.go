// Command mutants makes one line wrong at a time, and shows which of these mistakes the tests notice. It ends with a
// table by package, and fails if one has less than 92 % of its mutants killed, or one lives that equal.txt does not
// explain.
//
// There are tools for this, such as gremlins. It compiles for each mutant, which takes longer than the tests here, and
// times out. It asks a package's own tests, or all of a module: not the simulator and no others. It removes no statements,
// and has no place to say why a mutant that lives is no mistake.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A target is a package to make mistakes in. Files are those with mutants; none: all.
type target struct {
	name, dir string
	files     []string
	in        *language // nil: Go
	suites    []suite
}

// has reports whether a file has mutants.
func (t target) has(file string) bool {
	return path.Dir(file) == t.dir && (len(t.files) == 0 || slices.Contains(t.files, path.Base(file)))
}

// A suite is a package whose tests notice them.
type suite struct {
	dir  string
	only string // a regular expression, as the next
	skip string
	args []string
}

var simulator = suite{dir: "internal/sim", skip: "TestBugs_|SameLog", args: []string{"-seeds", "200"}}

var targets = []target{
	{name: "oncemill", dir: ".", files: engine, suites: []suite{
		{dir: "."}, {dir: "consumer"}, {dir: "e2e/consumer", skip: "Redis|Cost"}, simulator,
	}},
	{name: "dedupstore", dir: "dedupstore", files: []string{"stored.go"}, suites: []suite{{dir: "dedupstore"}, simulator}},
	{name: "internal/worker", dir: "internal/worker", suites: []suite{{dir: "internal/worker"}}},
	{name: "internal/sqlstore", dir: "internal/sqlstore", suites: []suite{{dir: "internal/sqlstore"}}},
	{name: "redisstore", dir: "dedupstore/redisstore", in: lua, files: scripts, suites: []suite{{
		dir: "dedupstore/redisstore", skip: "Linear|Cluster|Fuzz", args: []string{"-rapid.nofailfile"},
	}}},
	{name: "pgstore", dir: "dedupstore/pgstore", in: postgres, files: statements, suites: []suite{{
		dir:  "dedupstore/pgstore",
		only: "SQL_|^Test(Store|Inbox)_Conforms$|^TestClaim_|ALocked|HandlersThatEnd|ComesLateIsRefused",
		skip: "InboxSQL",
	}}},
}

// engine is decide and the three steps of a call, with the lease, batches and the inbox.
var engine = []string{
	"attempt.go", "batch.go", "claim.go", "inbox.go", "inboxbatch.go", "lease.go", "publish.go", "settle.go", "start.go",
	"step.go", "suspect.go", "verdict.go",
}

// scripts are those of operations that decide.
var scripts = []string{
	"claim_fresh.lua", "claim_again.lua", "claim.lua", "extend.lua", "finish_plain.lua", "finish.lua", "published.lua",
	"release.lua", "change.lua", "record.lua",
}

// statements are those of pgstore that decide.
var statements = []string{
	"fresh.sql", "fresh_many.sql", "first.sql", "first_many.sql", "extend.sql", "settle.sql", "finish.sql", "clean.sql",
	"clean.go", "inbox.go", "join.go", "row.go",
}

const enough = 92 // percent

var (
	sample  = flag.Int("sample", 0, "how many mutants of each package, chosen by the seed; 0: all")
	seed    = flag.Uint64("seed", 1, "chooses the sample")
	limit   = flag.Duration("limit", 3*time.Hour, "when to stop; the next run goes on")
	workers = flag.Int("workers", 2, "how many mutants at a time")
	again   = flag.Bool("again", false, "only those that lived in the last run, whatever has changed since")
	folder  = flag.String("work", "build/mutants", "for binaries and results")
	equals  = flag.String("equal", "scripts/internal/mutants/equal.txt", "mutants that break no promise")
	show    = flag.Bool("v", false, "print what killed each")
)

func main() {
	flag.Parse()
	root, err := os.Getwd()
	if err == nil {
		err = run(root, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(root string, names []string) error {
	known, err := readEqual(*equals)
	if err != nil {
		return err
	}
	stop := time.Now().Add(*limit)
	var scores []score
	var wrong []string
	for _, t := range targets {
		if len(names) > 0 && !slices.Contains(names, t.name) {
			continue
		}
		s, problems, err := t.try(root, known, stop)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		scores, wrong = append(scores, s), append(wrong, problems...)
	}
	fmt.Printf("\n%-18s %8s %8s %8s %12s %8s %7s\n", "package", "mutants", "killed", "equal", "not covered", "alive",
		"score")
	for _, s := range scores {
		fmt.Printf("%-18s %8d %8d %8d %12d %8d %6.1f%%\n", s.name, s.sum(), s.killed, s.equal, s.uncovered, s.alive,
			s.percent())
		if s.percent() < enough {
			wrong = append(wrong, fmt.Sprintf("%s: less than %d %% are killed", s.name, enough))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("\n%s", strings.Join(wrong, "\n"))
	}
	return nil
}

// A score counts mutants. Those that equal.txt explains are alive, too, and lower it.
type score struct {
	name                            string
	killed, equal, uncovered, alive int
}

func (s score) sum() int { return s.killed + s.equal + s.uncovered + s.alive }

func (s score) percent() float64 { return 100 * float64(s.killed) / float64(max(1, s.sum())) }

// try tries all mutants of a target, or a sample.
func (t target) try(root string, known map[string]string, stop time.Time) (s score, wrong []string, err error) {
	s.name = t.name
	work := filepath.Join(root, *folder, strings.ReplaceAll(t.name, "/", "_"))
	if err := os.MkdirAll(work, 0o750); err != nil {
		return s, nil, err
	}
	mutate := mutateGo
	if t.in != nil {
		mutate = t.in.mutate
	}
	mutants, changed, err := mutate(root, t.dir, t.files)
	if err != nil {
		return s, nil, err
	}
	wrong = stale(t, mutants, known)
	fmt.Printf("== %s: %d mutants\n", t.name, len(mutants))
	programs, sum, err := t.programs(root, work, changed)
	if err != nil {
		return s, nil, err
	}
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(mutants), func(i, j int) { //nolint:gosec // an order that can be repeated
		mutants[i], mutants[j] = mutants[j], mutants[i]
	})
	if *sample > 0 {
		mutants = mutants[:min(*sample, len(mutants))]
	}
	results, err := openResults(filepath.Join(work, "results.txt"), sum, *again)
	if err != nil {
		return s, nil, err
	}
	defer results.file.Close()
	began, tried, todo := time.Now(), 0, make(chan *mutant)
	var mu sync.Mutex // of the score, and of what is wrong
	var wait sync.WaitGroup
	for range *workers {
		wait.Go(func() {
			for m := range todo {
				by, old := results.before[m.name()]
				if !old {
					by = tryOne(programs, m)
				}
				mu.Lock()
				if !old {
					results.put(m, by)
				}
				wrong = append(wrong, s.add(m, by, known)...)
				if tried++; tried%100 == 0 || tried == len(mutants) {
					fmt.Printf("  %s %d/%d: %d killed, %d alive, %d not covered, %v\n", t.name, tried, len(mutants), s.killed,
						s.alive, s.uncovered, time.Since(began).Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	for i, m := range mutants {
		if time.Now().After(stop) {
			mu.Lock()
			wrong = append(wrong, fmt.Sprintf("%s: %d not tried in %v; the next run goes on", t.name, len(mutants)-i, *limit))
			mu.Unlock()
			break
		}
		todo <- m
	}
	close(todo)
	wait.Wait()
	slices.Sort(wrong)
	return s, wrong, nil
}

// programs compiles the tests of a target, and looks which mutants each reaches.
func (t target) programs(root, work string, changed map[string]string) (all []*program, sum string, err error) {
	for _, suite := range t.suites {
		p, one, err := build(root, work, changed, suite)
		if err == nil {
			err = p.trace(work, suite, t.in == nil)
		}
		if err != nil {
			return nil, "", err
		}
		all, sum = append(all, p), sum+one
	}
	return all, sum, nil
}

// tryOne returns what killed a mutant, or why nothing did.
func tryOne(programs []*program, m *mutant) (by string) {
	by = uncovered
	for _, p := range programs {
		killer, reached := p.kill(m)
		switch {
		case killer != "":
			return killer
		case reached:
			by = alive
		}
	}
	return by
}

// add counts a result, and returns what is wrong with it.
func (s *score) add(m *mutant, by string, known map[string]string) (wrong []string) {
	_, equal := known[m.key()]
	switch {
	case equal && by != alive && by != uncovered:
		s.killed++
		return []string{fmt.Sprintf("%s:%d: it is in equal.txt, and killed by %s", m.file, m.number, by)}
	case equal:
		s.equal++
		return nil
	case by == alive:
		s.alive++
	case by == uncovered:
		s.uncovered++
	default:
		s.killed++
		if *show {
			fmt.Printf("    %s:%d: %s: %s\n", m.file, m.number, m.what, by)
		}
		return nil
	}
	return []string{fmt.Sprintf("%s:%d: %s\n\t%s\n\t%s", m.file, m.number, m.line, m.what, by)}
}

const (
	alive     = "alive"
	uncovered = "not covered"
)
