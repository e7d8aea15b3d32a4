package faults_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
)

// ONCEMILL_SOAK is how long it lasts; without it, there is none. ONCEMILL_SOAK_DIR is where the tables, the series and
// the evidence go.
const (
	soakLength = "ONCEMILL_SOAK"
	soakDir    = "ONCEMILL_SOAK_DIR"
	soakOnly   = "ONCEMILL_SOAK_ONLY" // a pair whose name has this text; empty: all
)

// closeAfter is how long the books of an order stay open at least. Nobody stands still for longer but a whole pair.
const closeAfter = 45 * time.Second

// A soak runs pairs while everything fails.
type soak struct {
	*testing.T
	began      time.Time
	length     time.Duration
	dir        string
	natsServer string
	shops      []*soakShop
	slots      []*soakSlot
	log        *os.File
	wrong      func(format string, args ...any) // called for each fault in the books

	mu        sync.Mutex
	numbers   int // of relays
	recovered map[string][]time.Duration
	broken    map[string]int    // what was done beside SIGKILL, by kind
	killed    map[string]int    // by role
	found     int               // faults in the books
	dead      map[int]time.Time // when processes were killed, by ID
	series    []soakSample
}

// note writes a line to the log.
func (s *soak) note(format string, args ...any) {
	fmt.Fprintf(s.log, "%s %s\n", time.Now().UTC().Format(clockFormat), fmt.Sprintf(format, args...))
}

// TestSoak has producers, relays, workers and operators of three pairs work while everything fails. Each extra effect
// must be explained. See `make soak`.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(cmp.Or(os.Getenv(soakLength), "0s"))
	if err != nil {
		t.Fatal(err)
	}
	if length == 0 {
		t.Skip("without " + soakLength)
	}
	s := newSoak(t, length)
	harm, stopHarm := context.WithTimeout(t.Context(), length)
	defer stopHarm()
	work, stopWork := context.WithCancel(t.Context())
	defer stopWork()
	var keeping, others sync.WaitGroup
	for _, slot := range s.slots {
		keeping.Go(func() { slot.keep(work) })
	}
	others.Go(func() { s.signals(harm) })
	for _, shop := range s.shops {
		others.Go(func() { shop.breakServers(harm) })
		others.Go(func() { shop.lose(harm) })
		others.Go(func() { shop.books(harm) })
	}
	others.Go(func() { s.sample(harm) })
	for n := range int(length / time.Minute) {
		wait(harm, time.Until(s.began.Add(time.Duration(n+1)*time.Minute)))
		t.Log(s.line())
	}
	<-harm.Done()
	others.Wait()
	s.finish(stopWork, keeping.Wait)
	s.report()
}

func newSoak(t *testing.T, length time.Duration) *soak {
	t.Helper()
	s := &soak{
		T: t, length: length, dir: cmp.Or(os.Getenv(soakDir), t.TempDir()),
		wrong: t.Errorf, recovered: map[string][]time.Duration{}, broken: map[string]int{}, killed: map[string]int{},
		dead: map[int]time.Time{},
	}
	var err error
	if err = os.MkdirAll(s.dir, 0o755); err == nil {
		s.log, err = os.Create(filepath.Join(s.dir, "soak.log"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.log.Close() })
	s.natsServer = testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")
	for _, name := range slices.Sorted(maps.Keys(soakPairs)) {
		if !strings.Contains(name, os.Getenv(soakOnly)) {
			continue
		}
		pair := soakPairs[name]
		shop := &soakShop{
			soak: s, Ledger: ledger.New(nil), name: name, pair: pair, dir: t.TempDir(),
			task: soakTask{Pair: name, Rate: pair.rate}, closed: ledger.Books{Extra: map[ledger.Why]int{},
				Latest: map[ledger.Why]string{}},
			read: map[string]int64{}, forgot: map[string]time.Time{}, counts: map[string]int{},
		}
		if err := os.Mkdir(filepath.Join(shop.dir, "ended"), 0o700); err != nil {
			t.Fatal(err)
		}
		pair.world(shop)
		s.shops = append(s.shops, shop)
		for i, role := range pair.roles {
			s.slots = append(s.slots, &soakSlot{soakShop: shop, soakRole: role, place: i})
		}
	}
	s.began = time.Now()
	return s
}

// A soakSlot is a place for a process: when one dies, the next one comes.
type soakSlot struct {
	*soakShop
	soakRole
	place int

	lock    sync.Mutex
	process *testserver.Process // nil: there is none
	number  int                 // of a relay
	journal string
	killed  bool
	rests   bool      // see soakTask
	stopped time.Time // since when; zero: it is not
	lives   int
}

func (c *soakSlot) String() string { return fmt.Sprintf("%s: %s %d", c.name, c.role, c.place) }

// keep keeps a process running until ctx ends, and then ends it well.
func (c *soakSlot) keep(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := c.start()
		if err != nil {
			c.Error(err)
			return
		}
		select {
		case <-p.Ended():
		case <-ctx.Done():
			c.end(p)
		}
		c.lock.Lock()
		c.process = nil
		killed := c.killed
		c.lock.Unlock()
		c.mu.Lock()
		if c.role == soakWorker || c.role == soakBatches {
			c.ended = append(c.ended, c.journal)
		}
		c.mu.Unlock()
		if !killed && ctx.Err() == nil {
			c.Errorf("%v ended by itself, with code %d\n%s", c, p.ExitCode(), p.Output())
		}
		if killed {
			_ = os.RemoveAll(filepath.Dir(c.status()))
		}
	}
}

// status is the file with the process's status, beside its output.
func (c *soakSlot) status() string {
	return filepath.Join(c.dir, fmt.Sprintf("process-%d-%d", c.place, c.lives), "status")
}

func (c *soakSlot) start() (*testserver.Process, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.lives++
	c.killed, c.stopped = false, time.Time{}
	j := c.task
	j.Role, j.Version, j.Status, j.Rests = c.role, c.version, c.status(), c.rests
	name := fmt.Sprintf("%d-%d", c.place, c.lives)
	switch c.role {
	case soakProducer:
		name = soakProducer + ".asked"
	case soakOperator:
		name = soakOperator + ".forgot"
	case soakRelay:
		c.soak.mu.Lock()
		c.numbers++
		c.number = c.numbers
		c.soak.mu.Unlock()
		j.Number = c.number
		name += ".relay"
	default:
		name += ".journal"
	}
	j.Journal = filepath.Join(c.dir, name)
	c.journal = j.Journal
	dir := filepath.Dir(j.Status)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	p, err := testserver.StartProgram(dir, executable(c.T), taskArguments(c.T, "TestSoak_Process", j)...)
	if err != nil {
		return nil, err
	}
	c.process = p
	return p, nil
}

// end ends a process with SIGTERM. It must end well.
func (c *soakSlot) end(p *testserver.Process) {
	c.resume()
	of, err := os.FindProcess(p.Pid())
	if err == nil {
		err = of.Signal(syscall.SIGTERM)
	}
	if err != nil {
		c.Error(err)
	}
	select {
	case <-p.Ended():
		if code := p.ExitCode(); code > 0 { // -1: it did not listen yet
			c.Errorf("%v got SIGTERM and ended with code %d\n%s", c, code, p.Output())
		}
	case <-time.After(waitLimit):
		c.Errorf("%v got SIGTERM and has not ended after %v\n%s", c, waitLimit, p.Output())
		_ = p.Kill()
	}
}

// kill kills the process, stopped or not.
func (c *soakSlot) kill() {
	c.lock.Lock()
	defer c.lock.Unlock()
	p := c.process
	if p == nil || c.killed {
		return
	}
	c.killed = true
	e := ledger.Event{Why: ledger.HolderKilled, Holder: p.Pid(), From: time.Now()}
	if err := p.Kill(); err != nil {
		c.Error(err)
	}
	e.To = time.Now()
	c.note("%v, process %d, killed", c, p.Pid())
	c.soak.mu.Lock()
	c.dead[p.Pid()] = e.From
	c.soak.mu.Unlock()
	c.happened(e, ledger.RelayKilled)
	c.goesOn(p)
	c.did(c.soak.killed, c.role)
}

// happened tells the books an event, and those of relays what it is to them.
func (c *soakSlot) happened(e ledger.Event, ofRelay ledger.Why) {
	if c.role != soakRelay {
		c.Happened(e)
		return
	}
	e.Why, e.Holder = ofRelay, c.number
	c.relayHappened(e)
}

// stop stops the process for a time, unless it is.
func (c *soakSlot) stop(d time.Duration) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.process == nil || c.killed || !c.stopped.IsZero() {
		return
	}
	if err := c.process.Pause(); err != nil {
		return // it has just ended, which keep sees
	}
	c.stopped = time.Now()
	c.note("%v, process %d, stopped for %v", c, c.process.Pid(), d)
	c.did(c.broken, "process stopped")
	time.AfterFunc(d, c.resume)
}

func (c *soakSlot) resume() {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.process != nil && !c.stopped.IsZero() {
		_ = c.process.Resume() // it may have been killed
		c.goesOn(c.process)
	}
}

// goesOn notes that the process is stopped no more. The slot is locked.
func (c *soakSlot) goesOn(p *testserver.Process) {
	if c.stopped.IsZero() {
		return
	}
	e := ledger.Event{Why: ledger.HolderStopped, Holder: p.Pid(), From: c.stopped, To: time.Now()}
	c.stopped = time.Time{}
	c.happened(e, ledger.LeaseStopped)
}

// did counts what was done.
func (s *soak) did(what map[string]int, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what[kind]++
}

// signals kills and stops anybody every 20 to 500 ms until ctx ends.
func (s *soak) signals(ctx context.Context) {
	var looking sync.WaitGroup
	defer looking.Wait()
	for ctx.Err() == nil {
		wait(ctx, 20*time.Millisecond+rand.N(480*time.Millisecond))
		c := s.slots[rand.IntN(len(s.slots))]
		switch {
		case !c.spared && rand.IntN(3) > 0:
			looking.Go(func() { c.recovers(ctx, c.role+" killed", c.kill) })
		case rand.IntN(3) > 0:
			c.stop(rand.N(500 * time.Millisecond))
		default:
			c.stop(rand.N(8 * time.Second))
		}
	}
}

// stuckAfter is after how long without an effect servers break again.
const stuckAfter = 90 * time.Second

// recovers does something, and measures how long it takes from its end until the pair has a further effect. It reports
// false if that takes too long.
func (s *soakShop) recovers(ctx context.Context, kind string, do func()) bool {
	do()
	end := time.Now()
	if kind != soakOperator+" killed" {
		before, known := int64(0), false
		for ctx.Err() == nil {
			n, err := s.progress()
			stuck := time.Since(end) > stuckAfter
			if err == nil && known && n > before || stuck {
				s.recoveredFrom(kind, time.Since(end))
				return !stuck
			}
			if time.Since(end) > closeAfter/4 {
				s.stood.Store(time.Now().UnixNano())
			}
			if err == nil && !known {
				before, known = n, true
			}
			wait(ctx, 20*time.Millisecond)
		}
	}
	return true
}

// recoveredFrom notes how long it took after something was done to a pair.
func (s *soakShop) recoveredFrom(kind string, took time.Duration) {
	_, store, _ := strings.Cut(s.name, "× ")
	s.soak.mu.Lock()
	defer s.soak.mu.Unlock()
	kind = store + ": " + kind
	s.recovered[kind] = append(s.recovered[kind], took)
}

// breakServers breaks one server after the other until ctx ends.
func (s *soakShop) breakServers(ctx context.Context) {
	sum := 0
	for _, f := range s.faults {
		sum += f.weight
	}
	for {
		wait(ctx, time.Second+rand.N(9*time.Second))
		if ctx.Err() != nil {
			return
		}
		n := rand.IntN(sum)
		for _, f := range s.faults {
			if n -= f.weight; n >= 0 {
				continue
			}
			s.did(s.broken, f.kind)
			s.note("%s: %s", s.name, f.kind)
			away := ledger.Event{Why: ledger.StoreAway, From: time.Now()}
			recovered := s.recovers(ctx, f.kind, f.do) // Redis loads what it has before it answers
			if away.To = time.Now(); !f.broker {
				s.Happened(away)
			}
			if !recovered && s.revive != nil {
				s.revive()
			}
			break
		}
	}
}

const lostAnswers = "answers lost"

// lose has proxies lose and delay answers now and then until ctx ends.
func (s *soakShop) lose(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, rand.N(6*time.Second))
		p := s.proxies[rand.IntN(len(s.proxies))]
		away := ledger.Event{Why: ledger.StoreAway, From: time.Now()}
		kind := lostAnswers
		if rand.IntN(2) == 0 {
			kind = "answers delayed"
			p.delays.Store(20)
		} else {
			p.drops.Store(100)
		}
		s.did(s.broken, kind)
		wait(ctx, rand.N(4*time.Second))
		p.drops.Store(0)
		p.delays.Store(0)
		if away.To = time.Now(); !p.broker && kind == lostAnswers {
			s.Happened(away)
		}
	}
}

// books keeps the books until ctx ends.
func (s *soakShop) books(ctx context.Context) {
	for ctx.Err() == nil {
		s.book(closeAfter)
		wait(ctx, time.Second)
	}
}

// unexplained keeps the evidence of a fault in the books. The first ones have a file.
func (s *soakShop) unexplained(f ledger.Fault, a ledger.Account) {
	s.soak.mu.Lock()
	s.found++
	n := s.found
	s.soak.mu.Unlock()
	s.wrong("%s: %s: %s: %s", s.name, f.ID, f.Kind, f.What)
	if n > 20 {
		return
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n%s: %s\n%s\n\nWhat the books have:\n%v\n", s.name, f.ID, f.Kind, f.What, a)
	for _, run := range a.Runs {
		fmt.Fprintf(&text, "%+v\n", run)
	}
	fmt.Fprint(&text, "\nWhat processes wrote:\n")
	_ = filepath.WalkDir(s.dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it is gone
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, f.ID) && len(line) < 4000 {
				fmt.Fprintf(&text, "%s: %s", strings.TrimPrefix(name, s.dir), line)
			}
		}
		return nil
	})
	if s.db != nil {
		rows, err := s.db.QueryContext(s.Context(), `SELECT n, id, pid FROM effects WHERE id = '`+f.ID+`'`)
		if err == nil {
			for rows.Next() {
				var n, pid int64
				var id string
				if rows.Scan(&n, &id, &pid) == nil {
					fmt.Fprintf(&text, "effect %d of %s, by process %d\n", n, id, pid)
				}
			}
			rows.Close()
			err = rows.Err()
		}
		if err != nil {
			fmt.Fprintf(&text, "effects: %v\n", err)
		}
	}
	fmt.Fprint(&text, "\nWhat was done to everybody is in soak.log.\n")
	name := filepath.Join(s.soak.dir, fmt.Sprintf("evidence-%d-%s.txt", n, f.ID))
	if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
		s.Error(err)
	}
}

// lookThen is a store in which something happens after each look.
type lookThen struct {
	dedupstore.Inspector
	then func()
}

func (s lookThen) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	defer s.then()
	return s.Inspector.Look(ctx, keys)
}

// An effect that nothing explains is noticed while the soak runs, and leaves all that was written about its order. The
// books of an order wait for a run that is still at work when the store has the outcome of another.
func TestSoak_KeepsTheEvidenceOfAnUnexplainedEffect(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "soak.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var wrong []string
	s := &soakShop{
		soak: &soak{T: t, dir: t.TempDir(), log: log, dead: map[int]time.Time{},
			wrong: func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }},
		Ledger: ledger.New(nil), name: "JetStream × Redis", dir: t.TempDir(), inspector: store,
		closed: ledger.Books{Extra: map[ledger.Why]int{}, Latest: map[ledger.Why]string{}},
		read:   map[string]int64{}, forgot: map[string]time.Time{}, counts: map[string]int{},
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(soakProducer+".asked", `{"From":0,"To":2}`+"\n")
	journal := ""
	for n := range 2 {
		id := soakID(s.name, n)
		a, err := dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key: orderKey(id), Owner: "owner-of-the-key-" + id, Lease: time.Hour, Retention: time.Hour, MaxAttempts: 9,
		})
		if err == nil {
			err = dedupstore.SettleOne(t.Context(), store, a.Claim, dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour,
			})
		}
		if err != nil {
			t.Fatal(err)
		}
		for fence := range 2 * n { // the second order has two effects
			journal += fmt.Sprintf(`{"ID":%q,"Fence":%d,"Attempt":1,"Found":"absent","Effect":"2026-01-01T00:00:00Z",`+
				`"End":"recorded"}`+"\n", id, fence+1)
		}
	}
	write("1.journal", journal)
	late := fmt.Sprintf(`{"ID":%q,"Fence":1,"Attempt":1,"Found":"absent","Until":%q`, soakID(s.name, 0),
		time.Now().Add(time.Hour).Format(time.RFC3339))
	s.inspector = lookThen{store, func() { write("1.journal", journal+late+"}\n") }}
	s.book(time.Nanosecond)
	if s.closed.Messages != 1 || s.closed.Effects != 2 || len(wrong) != 1 {
		t.Errorf("while a run of an order goes on: %+v, %q", s.closed, wrong)
	}
	s.inspector = store
	write("1.journal", journal+late+"}\n"+late+`,"Effect":"2026-01-01T00:00:00Z","End":"refused"}`+"\n")
	s.book(0)
	if s.closed.Messages != 2 || s.closed.Effects != 3 || len(wrong) != 1 {
		t.Errorf("after it: %+v, %q", s.closed, wrong)
	}
	at := time.Now().Format(time.RFC3339Nano)
	write(soakOperator+".forgot", fmt.Sprintf(`{"ID":"a","At":%q}
{"ID":"a","At":%[1]q,"Refused":true}
{"ID":"b","At":%[1]q}
{"ID":"c","At":%[1]q}
`, at))
	s.book(0)
	if _, refused := s.forgot["a"]; refused || s.forgot["b"].IsZero() || s.counts["changes refused"] != 1 {
		t.Errorf("operators forgot %v, and %v", s.forgot, s.counts)
	}
	gone := soakID(s.name, 7) // forgotten, and not delivered again
	s.forgot[gone] = time.Now().Add(-time.Hour)
	for stood, want := range map[time.Time]bool{time.Now(): false, time.Now().Add(-time.Hour): true} {
		s.stood.Store(stood.UnixNano())
		if done, err := s.done([]string{gone}, time.Minute); err != nil || done[gone] != want {
			t.Errorf("done is %v when the pair stood still %v ago, %v", done, time.Since(stood), err)
		}
	}
	evidence, err := os.ReadFile(filepath.Join(s.soak.dir, "evidence-1-"+soakID(s.name, 1)+".txt"))
	if n := strings.Count(string(evidence), `"End":"recorded"`); err != nil || n != 2 {
		t.Errorf("the evidence has %d lines of the journal, %v:\n%s", n, err, evidence)
	}
}

// line is what happened until now.
func (s *soak) line() string {
	var all []string
	for _, shop := range s.shops {
		shop.mu.Lock()
		all = append(all, fmt.Sprintf("%s: %d asked, %d closed, %d open, %d extra",
			shop.name, shop.asked, shop.closed.Messages, len(shop.open), shop.closed.Extras()))
		shop.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%v; %s; %d killed, %d other faults; %d faults in the books",
		time.Since(s.began).Round(time.Second), strings.Join(all, "; "), sum(s.killed), sum(s.broken), s.found)
}

func sum(of map[string]int) (n int) {
	for _, m := range of {
		n += m
	}
	return n
}

// finish lets all be handled in peace, and closes all books.
func (s *soak) finish(stopWork context.CancelFunc, ended func()) {
	s.Helper()
	for _, c := range s.slots {
		c.resume()
		if c.role == soakProducer || c.role == soakOperator {
			c.lock.Lock()
			c.rests = true
			c.lock.Unlock()
			c.kill()
		}
	}
	var waiting sync.WaitGroup
	for _, shop := range s.shops {
		waiting.Go(func() {
			end := time.Now().Add(5 * time.Minute)
			for left := shop.left(); left != ""; left = shop.left() {
				if time.Now().After(end) {
					shop.Errorf("%s: %s", shop.name, left)
					shop.keepOpen()
					return
				}
				wait(s.Context(), time.Second)
			}
		})
	}
	waiting.Wait()
	stopWork()
	ended()
	for _, shop := range s.shops {
		shop.closeAll()
	}
}

// keepOpen keeps the evidence of orders that are not done.
func (s *soakShop) keepOpen() {
	s.mu.Lock()
	open := slices.Clone(s.open[:min(len(s.open), 3)])
	s.mu.Unlock()
	for _, o := range open {
		f := ledger.Fault{ID: o.id, Kind: ledger.Missing, What: "it is not done when all rests"}
		s.unexplained(f, s.Message(o.id))
	}
}

// left says what is left to do; "": nothing.
func (s *soakShop) left() string {
	s.book(closeAfter)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.open); n > 0 {
		var keys []dedupstore.Key
		for _, o := range s.open[:min(n, 3)] {
			keys = append(keys, orderKey(o.id))
		}
		records, err := s.inspector.Look(s.Context(), keys)
		return fmt.Sprintf("%d orders are not done, such as %+v (%v)", n, records, err)
	}
	if !s.drained() {
		return "the broker has deliveries that are not acknowledged"
	}
	if s.box == nil {
		return ""
	}
	stats, err := s.box.Stats(s.Context())
	if err != nil || stats.Pending > 0 {
		return fmt.Sprintf("the outbox has %d rows to publish (%v)", stats.Pending, err)
	}
	return ""
}

// closeAll closes the books of what nobody asked for, and those of relays.
func (s *soakShop) closeAll() {
	s.book(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.Balance(0) // of what came later
	for _, f := range b.Faults {
		s.unexplained(f, s.Message(f.ID))
	}
	s.closed.Add(b)
	if s.box == nil {
		return
	}
	var effects int
	if err := s.db.QueryRowContext(s.Context(), `SELECT count(*) FROM effects`).Scan(&effects); err != nil {
		s.Error(err)
	} else if effects != s.closed.Effects {
		s.wrong("%s: %d effects in the database, and %d in the books", s.name, effects, s.closed.Effects)
	}
	relays := ledger.New(nil)
	for _, e := range s.relays {
		relays.Happened(e)
	}
	copies := s.copies()
	receipts := s.receipts()
	if of := halves(s.pairs(`SELECT DISTINCT id, id FROM effects`), receipts); len(of) > 0 {
		s.wrong("%s: %d orders were committed by halves, such as %v", s.name, len(of), of[:min(len(of), 10)])
	}
	relays.Ask(slices.Collect(maps.Values(receipts))...)
	if err := relays.ReadRelays(s.dir); err != nil {
		s.Error(err)
	}
	relays.Relayed(soakRelays().Lease, copies)
	b = relays.Balance(0)
	for _, f := range b.Faults {
		s.unexplained(f, relays.Message(f.ID))
	}
	s.sent = b
}

// receipts are the IDs of the receipts in the outbox, by their orders. However often an order runs, it has one.
func (s *soakShop) receipts() map[string]string {
	return s.pairs(`SELECT payload, id FROM oncemill_outbox WHERE topic = '` + s.task.receipts() + `'`)
}

// pairs returns what a query finds: two texts in each row.
func (s *soakShop) pairs(query string) map[string]string {
	found := map[string]string{}
	rows, err := s.db.QueryContext(s.Context(), query)
	if err != nil {
		s.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var of, is string
		if err := rows.Scan(&of, &is); err != nil {
			s.Fatal(err)
		}
		found[of] = is
	}
	if err := rows.Err(); err != nil {
		s.Fatal(err)
	}
	return found
}

// halves names the orders that have an effect and no receipt, or a receipt and no effect. Both are of one transaction.
func halves(effects, receipts map[string]string) (of []string) {
	for id := range effects {
		if receipts[id] == "" {
			of = append(of, id+" has no receipt")
		}
	}
	for id := range receipts {
		if effects[id] == "" {
			of = append(of, id+" has no effect")
		}
	}
	slices.Sort(of)
	return of
}

func TestSoak_NamesWhatWasCommittedByHalves(t *testing.T) {
	t.Parallel()
	got := halves(map[string]string{"a": "a", "b": "b"}, map[string]string{"b": "r", "c": "r"})
	if want := []string{"a has no receipt", "c has no effect"}; !slices.Equal(got, want) {
		t.Errorf("it names %v, want %v", got, want)
	}
}

// report logs the tables, and wants every extra effect to have one of the explanations that there are.
func (s *soak) report() {
	s.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "\n%v, with %d processes\n", s.length, len(s.slots))
	for _, shop := range s.shops {
		fmt.Fprintf(&text, "\n%s\n", shop.name)
		fmt.Fprintf(&text, "  %-44s %10d\n", "orders", shop.asked)
		fmt.Fprintf(&text, "  %-44s %10d\n", "effects", shop.closed.Effects)
		for _, what := range slices.Sorted(maps.Keys(shop.counts)) {
			fmt.Fprintf(&text, "  %-44s %10d\n", what, shop.counts[what])
		}
		printExtras(&text, "effect again", shop.closed)
		printExtras(&text, "receipt sent again", shop.sent)
		allowed := []ledger.Why{ledger.Redriven}
		if !shop.pair.inbox {
			allowed = []ledger.Why{
				ledger.Redriven, ledger.HolderKilled, ledger.HolderStopped, ledger.StoreAway, ledger.HandlerFailed,
			}
		}
		for why, n := range shop.closed.Extra {
			if !slices.Contains(allowed, why) {
				s.Errorf("%s: %d extra effects because %s, such as %s", shop.name, n, why, shop.closed.Latest[why])
			}
		}
		if least := int(s.length.Seconds()) * shop.pair.rate / 2; shop.asked < least {
			s.Errorf("%s: %d orders, and not half of what its rate gives: it stood still", shop.name, shop.asked)
		}
		if shop.closed.Messages != shop.asked {
			s.Errorf("%s: the books of %d orders were closed, of %d", shop.name, shop.closed.Messages, shop.asked)
		}
	}
	for _, shop := range s.shops {
		if info, err := os.Stat(filepath.Join(shop.dir, soakHung)); err == nil {
			s.broken["handler hung for 1 to 10 s"] += int(info.Size())
		}
	}
	fmt.Fprintf(&text, "\nSIGKILL: %d in all\n", sum(s.killed))
	printCounts(&text, s.killed)
	fmt.Fprintf(&text, "\nother faults: %d in all\n", sum(s.broken))
	printCounts(&text, s.broken)
	var lost, late int64
	for _, shop := range s.shops {
		for _, p := range shop.proxies {
			lost += p.dropped.Load()
			late += p.later.Load()
		}
	}
	fmt.Fprintf(&text, "  answers that were lost %d, delayed %d\n", lost, late)
	fmt.Fprintf(&text, "\n%-50s %8s %12s %12s\n", "until the pair's next effect", "times", "median", "longest")
	for _, kind := range slices.Sorted(maps.Keys(s.recovered)) {
		all := s.recovered[kind]
		slices.Sort(all)
		fmt.Fprintf(&text, "%-50s %8d %12v %12v\n", kind, len(all), all[len(all)/2].Round(time.Millisecond),
			all[len(all)-1].Round(time.Millisecond))
	}
	s.printSeries(&text)
	s.Log(text.String())
	if err := os.WriteFile(filepath.Join(s.dir, "soak.txt"), []byte(text.String()), 0o644); err != nil {
		s.Error(err)
	}
}

func printExtras(to *strings.Builder, what string, b ledger.Books) {
	for _, why := range slices.Sorted(maps.Keys(b.Extra)) {
		fmt.Fprintf(to, "  %-44s %10d\n", what+": "+string(why), b.Extra[why])
	}
	fmt.Fprintf(to, "  %-44s %10d\n", what+": unexplained", len(b.Of(ledger.Unexplained)))
}

func printCounts(to *strings.Builder, of map[string]int) {
	for _, kind := range slices.Sorted(maps.Keys(of)) {
		fmt.Fprintf(to, "  %-44s %10d\n", kind, of[kind])
	}
}

// oneIn is true once in n times; never for 0.
func oneIn(n int32) bool { return n > 0 && rand.Int32N(n) == 0 }

// randomly is a time up to d.
func randomly(d time.Duration) time.Duration { return rand.N(d) }

// asksAgain is a store as an operator sees it whose client asks again when an answer is lost.
type asksAgain struct{ dedupstore.Inspector }

func (s asksAgain) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	return cmp.Or(s.Inspector.Change(ctx, seen, c), s.Inspector.Change(ctx, seen, c))
}

// counted counts messages.
type counted struct{ n int }

func (p *counted) Publish(_ context.Context, messages ...producer.Message) error {
	p.n += len(messages)
	return nil
}

// The books hear of a change that Redis has made and refused when it was asked again.
func TestSoak_AChangeThatWasRefusedMayHaveBeenMade(t *testing.T) {
	t.Parallel()
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &soakProcess{T: t, soakTask: soakTask{Pair: "JetStream × Redis", Journal: filepath.Join(dir, "operator")}}
	p.Redis = "by a client that asks again"
	err = os.WriteFile(filepath.Join(dir, soakProducer+".asked"), []byte(`{"From":0,"To":100,"Done":true}`+"\n"), 0o600)
	for n := 0; n < 100 && err == nil; n++ {
		key := orderKey(soakID(p.Pair, n))
		var a dedupstore.Answer
		a, err = dedupstore.ClaimOne(t.Context(), store, dedupstore.Request{
			Key: key, Owner: "owner-of-the-key-" + key.ID, Lease: time.Hour, Retention: time.Hour, MaxAttempts: 9,
		})
		if err == nil {
			err = dedupstore.SettleOne(t.Context(), store, a.Claim, dedupstore.Finish{
				Outcome: dedupstore.Outcome{Kind: dedupstore.Succeeded}, Retention: time.Hour,
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	journal, err := os.Create(p.Journal)
	if err != nil {
		t.Fatal(err)
	}
	defer journal.Close()
	var pub counted
	if err := p.change(t.Context(), journal, &soakStore{inspector: asksAgain{store}}, &pub); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(p.Journal)
	if err != nil || strings.Count(string(text), "\n") != 1 || strings.Contains(string(text), "Refused") || pub.n != 1 {
		t.Errorf("%d orders came again, %v; the journal is %s", pub.n, err, text)
	}
}
