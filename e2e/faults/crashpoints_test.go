package faults_test

import (
	"context"
	"encoding/json"
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

	"github.com/google/go-cmp/cmp"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/e2e/internal/ledger"
	"github.com/oncemill/oncemill/internal/testserver"
)

// A crashPair is a broker with a store.
type crashPair struct {
	points []string
	inbox  bool // tier 2: one effect, whatever crashes
	firsts bool // only what was delivered before is claimed
	lease  time.Duration
	open   func(ctx context.Context, p *crashProcess) (*crashStore, error) // in a process
	world  func(r *crashRig) crashWorld
}

// A crashWorld is what a rig sees of its servers.
type crashWorld struct {
	publish  func(ids ...string)
	drained  func() bool                                 // nothing is left to consume, nor to relay
	letters  func() []string                             // the messages that have a dead letter
	effects  func() map[string][]string                  // of an inbox: of each message; nil: effects are in journals
	finished func(keys []dedupstore.Key) map[string]bool // the messages with an outcome
	rows     func() []string                             // the IDs in the outbox; nil: there is none
	receipts func() []string                             // the IDs that relays published
}

var (
	leasedPoints = []string{
		claimSent, claimAnswered, handlerStarted, effectMade, settleSent, settleAnswered, outputPublish, ackReady,
		ackSent,
	}
	inboxPoints = []string{
		betweenMembers, handlerStarted, effectMade, commitSent, commitAnswered, outputPublish, claimSent, claimAnswered,
	}
	relayPoints = []string{rowsRead, rowsPublished, rowsMarked}
)

// crashPairs are filled by init: processes look up here what to do, too.
var crashPairs map[string]crashPair

func init() {
	crashPairs = map[string]crashPair{
		"JetStream × Redis": {
			points: slices.Concat(leasedPoints, []string{betweenMembers, stepGap, stepRecorded}),
			lease:  time.Second, open: crashingRedis, world: onRedis,
		},
		"JetStream × natskv's inbox": {
			points: slices.Concat(inboxPoints, []string{commitHalf, ackReady, ackSent}),
			inbox:  true, lease: 15 * time.Second, open: crashingStream, world: onStream,
		},
		"JetStream × PostgreSQL's inbox": {
			points: slices.Concat([]string{ackReady, ackSent}, inboxPoints, relayPoints),
			inbox:  true, firsts: true, lease: time.Second, open: crashingPostgres, world: onPostgres,
		},
		"Kafka × MariaDB's inbox": {
			points: slices.Concat(inboxPoints, []string{ackSent, ackAnswered}, relayPoints),
			inbox:  true, lease: time.Second, open: crashingMariaDB, world: onMariaDB,
		},
	}
}

// namesInInbox are other words for what a point is in an inbox.
var namesInInbox = map[string]string{handlerStarted: "begun", effectMade: "written"}

// What a crash at a point means for the effect of its message under a lease. Other points repeat nothing.
var (
	mustRepeat = []string{effectMade, betweenMembers, stepGap}
	mayRepeat  = []string{settleSent}
)

// Full: in each pair, processes kill themselves 20 times at each point; else once.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	tables := map[string]string{}
	t.Run("pairs", func(t *testing.T) {
		for name := range crashPairs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newCrashRig(t, name)
				for _, point := range r.pair.points {
					for range full(20, 1) {
						r.crash(point)
					}
				}
				r.finish()
				table := r.judge()
				mu.Lock()
				defer mu.Unlock()
				tables[name] = table
			})
		}
	})
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		t.Log("\n" + tables[name])
	}
}

// A crashRig runs the processes of a pair, one after the other, and keeps their books.
type crashRig struct {
	*testing.T
	*ledger.Ledger // of messages
	crashWorld
	name    string
	pair    crashPair
	task    crashTask
	dir     string
	relays  int
	asked   []string
	crashes []crashed
	kills   []ledger.Event
	books   ledger.Books
	relayed *ledger.Ledger // of receipts; nil: there are none
}

func newCrashRig(t *testing.T, name string) *crashRig {
	t.Helper()
	pair := crashPairs[name]
	r := &crashRig{
		T: t, Ledger: ledger.New(nil), name: name, pair: pair, dir: t.TempDir(),
		task: crashTask{Pair: name, Lease: pair.lease},
	}
	r.crashWorld = pair.world(r)
	return r
}

// crash has a process kill itself at a point.
func (r *crashRig) crash(point string) {
	r.Helper()
	j := r.task
	j.Point, j.Hit, j.Batch = point, 1+rand.IntN(3), point == betweenMembers
	if r.pair.firsts && (point == claimSent || point == claimAnswered) {
		r.crash(handlerStarted)
		j.Hit = 1
	}
	if strings.HasPrefix(point, "relay") {
		r.relays++
		j.Relay, j.Hit = r.relays, 1
		worker := r.start(r.task) // for the rows
		defer r.terminate(worker)
	}
	j.Crash = filepath.Join(r.dir, fmt.Sprint("crash-", len(r.crashes)))
	r.order(point)
	p := r.start(j)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); ; {
		select {
		case <-p.Ended():
		case <-tick.C:
			if time.Now().After(end) {
				r.Fatalf("waited %v for a crash at %q\n%s", waitLimit, point, p.Output())
			}
			r.order(point)
			continue
		}
		break
	}
	text, err := os.ReadFile(j.Crash)
	if err != nil {
		r.Fatalf("a process ended with code %d before it crashed at %q: %v\n%s", p.ExitCode(), point, err, p.Output())
	}
	c := crashed{}
	if err := json.Unmarshal(text, &c); err != nil {
		r.Fatal(err)
	}
	r.crashes = append(r.crashes, c)
	kill := ledger.Event{Why: ledger.HolderKilled, Holder: p.Pid(), From: c.At, To: time.Now()}
	if j.Relay > 0 {
		kill.Why, kill.Holder = ledger.RelayKilled, j.Relay
	}
	r.kills = append(r.kills, kill)
	r.Happened(kill)
}

// order publishes some messages, so that a process gets to a crash point.
func (r *crashRig) order(point string) {
	r.Helper()
	var ids []string
	for n := range 6 {
		kind := "plain-"
		switch {
		case n > 3 && point == outputPublish:
			kind = refusedMessage
		case point == stepGap, point == stepRecorded:
			kind = steppedMessage
		}
		ids = append(ids, fmt.Sprint(kind, len(r.asked)+n))
	}
	r.asked = append(r.asked, ids...)
	r.publish(ids...)
}

// start starts a process with notes of its own.
func (r *crashRig) start(j crashTask) *testserver.Process {
	r.Helper()
	dir, err := os.MkdirTemp(r.dir, "process-")
	if err != nil {
		r.Fatal(err)
	}
	j.Journal = filepath.Join(r.dir, filepath.Base(dir)+map[bool]string{true: ".relay", false: ".journal"}[j.Relay > 0])
	p, err := testserver.StartProgram(dir, executable(r.T), taskArguments(r.T, "TestCrashPoints_Process", j)...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { p.Kill() })
	return p
}

// terminate ends processes with SIGTERM. They must end well.
func (r *crashRig) terminate(all ...*testserver.Process) {
	r.Helper()
	for _, p := range all {
		of, err := os.FindProcess(p.Pid())
		if err == nil {
			err = of.Signal(syscall.SIGTERM)
		}
		if err != nil {
			r.Fatal(err)
		}
		select {
		case <-p.Ended():
		case <-time.After(waitLimit):
			r.Fatalf("a process that got SIGTERM has not ended after %v\n%s", waitLimit, p.Output())
		}
		if code := p.ExitCode(); code != 0 && code != -1 { // -1: SIGTERM came before it was listened to
			r.Errorf("a process that got SIGTERM ended with code %d\n%s", code, p.Output())
		}
	}
}

// finish has everything handled, and closes the books.
func (r *crashRig) finish() {
	r.Helper()
	all := []*testserver.Process{r.start(r.task)}
	if r.rows != nil {
		r.relays++
		j := r.task
		j.Relay = r.relays
		all = append(all, r.start(j))
	}
	until(r.T, "all to be handled", r.drained)
	r.terminate(all...)

	if err := r.Read(r.dir); err != nil {
		r.Fatal(err)
	}
	var keys []dedupstore.Key
	for _, id := range r.asked {
		keys = append(keys, orderKey(id))
		if r.pair.inbox && !strings.HasPrefix(id, refusedMessage) {
			r.Want(id, r.wanted()...)
		} else {
			r.Ask(id)
		}
	}
	for id := range r.finished(keys) {
		r.Over(id)
	}
	for _, id := range r.letters() {
		r.DeadLettered(id, 1)
	}
	if r.effects != nil {
		for id, rows := range r.effects() {
			for _, row := range rows {
				r.Found(id, row)
			}
		}
	}
	r.books = r.Balance(0)
	if r.rows != nil {
		r.bookReceipts()
	}
}

// wanted is what a message makes in an inbox.
func (r *crashRig) wanted() []string {
	if r.rows == nil {
		return []string{"price 0", "price 1"}
	}
	return []string{"effect"}
}

// bookReceipts tells a ledger what is in the outbox, and what relays published.
func (r *crashRig) bookReceipts() {
	r.Helper()
	r.relayed = ledger.New(nil)
	for _, e := range r.kills {
		r.relayed.Happened(e)
	}
	rows := r.rows()
	r.relayed.Ask(rows...)
	if err := r.relayed.ReadRelays(r.dir); err != nil {
		r.Fatal(err)
	}
	r.relayed.Relayed(shortLease().Lease, r.receipts())
	good := 0
	for _, id := range r.asked {
		if !strings.HasPrefix(id, refusedMessage) {
			good++
		}
	}
	if len(rows) != good {
		r.Errorf("%d rows in the outbox, want one for each of %d effects", len(rows), good)
	}
}

// judge wants the books to balance, and each effect that was repeated to be explained by its crash. It returns a table.
func (r *crashRig) judge() string {
	r.Helper()
	r.books.MustExplain(r.T, ledger.HolderKilled)
	repeated, problems := blameCrashes(r.Messages(), r.crashes, r.pair.inbox)
	if r.relayed != nil {
		r.relayed.Balance(0).MustExplain(r.T, ledger.RelayKilled)
		problems = append(problems, blameRelays(r.relayed.Messages(), r.crashes, repeated)...)
	}
	for _, p := range problems {
		r.Error(p)
	}
	var table strings.Builder
	b := r.books
	fmt.Fprintf(&table, "%s: %d messages, %d effects, %d dead letters\n", r.name, b.Messages, b.Effects, b.DeadLetters)
	fmt.Fprintf(&table, "%-28s %8s %16s %20s\n", "crash point", "crashes", "its own repeats", "neighbours' repeats")
	for _, point := range r.pair.points {
		n := 0
		for _, c := range r.crashes {
			if c.Point == point {
				n++
			}
		}
		name := point
		if inInbox, other := namesInInbox[point]; other && r.pair.inbox {
			name = inInbox
		}
		fmt.Fprintf(&table, "%-28s %8d %16d %20d\n", name, n, repeated[point].own, repeated[point].neighbours)
	}
	return table.String()
}

// crashRepeats are effects that were made again after crashes at a point: those of the messages that the crash happened
// to, and of others that were in flight.
type crashRepeats struct{ own, neighbours int }

// blameCrashes counts the effects that were repeated, by the crash point of the process that had made them before. It
// says which of them that point does not explain.
func blameCrashes(
	messages map[string]ledger.Account, crashes []crashed, inbox bool,
) (repeats map[string]crashRepeats, problems []string) {
	repeats = map[string]crashRepeats{}
	of := map[int]crashed{}
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, c := range crashes {
		of[c.PID] = c
	}
	repeated := map[string]map[int]bool{} // the processes whose effect on a message was repeated
	for _, id := range slices.Sorted(maps.Keys(messages)) {
		var before *ledger.Run
		for _, run := range messages[id].Runs {
			if !run.Did() {
				continue
			}
			if before != nil {
				c, crashed := of[before.PID]
				n := repeats[c.Point]
				switch own := slices.Contains(c.IDs, id); {
				case !crashed:
					problem("%s: process %d did not crash, and its effect was repeated", id, before.PID)
				case own && !slices.Contains(mustRepeat, c.Point) && !slices.Contains(mayRepeat, c.Point):
					problem("%s: a crash at %q explains no second effect", id, c.Point)
				case own:
					n.own++
				default:
					n.neighbours++
				}
				repeats[c.Point] = n
				if repeated[id] == nil {
					repeated[id] = map[int]bool{}
				}
				repeated[id][before.PID] = true
			}
			before = &run
		}
	}
	for _, c := range crashes {
		for _, id := range c.IDs {
			if !inbox && slices.Contains(mustRepeat, c.Point) && !repeated[id][c.PID] {
				problem("%s: a crash at %q, and the effect was not repeated: was it none?", id, c.Point)
			}
		}
	}
	return repeats, problems
}

// blameRelays counts the sendings that were repeated, by the crash point of the relay that had sent the row before.
func blameRelays(
	rows map[string]ledger.Account, crashes []crashed, repeats map[string]crashRepeats,
) (problems []string) {
	of := map[int]crashed{}
	for _, c := range crashes {
		of[c.Relay] = c
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		for i, sending := range rows[id].Sendings {
			if i == 0 {
				continue
			}
			c := of[rows[id].Sendings[i-1].Relay]
			n := repeats[c.Point]
			switch own := slices.Contains(c.IDs, id); {
			case own && c.Point != rowsPublished:
				problems = append(problems,
					fmt.Sprintf("%s: sent again by %+v; a crash at %q explains that not", id, sending, c.Point))
			case own:
				n.own++
			default:
				n.neighbours++
			}
			repeats[c.Point] = n
		}
	}
	return problems
}

// A second effect that no crash explains must not pass.
func TestCrashPoints_APlantedEffectIsNoticed(t *testing.T) {
	t.Parallel()
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	run := func(fence uint64, pid int, seconds int, end ledger.End) string {
		line, err := json.Marshal(ledger.Run{
			PID: pid, ID: "m", Fence: fence, Attempt: int(fence), Found: dedupstore.Running, Granted: at(seconds),
			Until: at(seconds + 1), Effect: at(seconds), Effects: 1, End: end,
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(line) + "\n"
	}
	again := run(2, 8, 5, ledger.Recorded)
	for name, tc := range map[string]struct {
		journal string
		crash   string
		want    bool // that something is wrong
	}{
		"after its effect":               {run(1, 7, 0, "") + again, effectMade, false},
		"before its settlement's answer": {run(1, 7, 0, "") + again, settleSent, false},
		"after its settlement's answer":  {run(1, 7, 0, "") + again, settleAnswered, true},
		"once":                           {run(1, 7, 0, ledger.Recorded), ackSent, false},
		"recorded, and again":            {run(1, 7, 0, ledger.Recorded) + again, effectMade, true},
		"nobody crashed":                 {run(1, 6, 0, "") + again, effectMade, true},
		"twice after one crash":          {run(1, 7, 0, "") + again + run(3, 9, 9, ledger.Recorded), effectMade, true},
		"none":                           {"", effectMade, true},
	} {
		l, dir := ledger.New(nil), t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "1.journal"), []byte(tc.journal), 0o600); err != nil {
			t.Fatal(err)
		}
		l.Ask("m")
		l.Over("m")
		l.Happened(ledger.Event{Why: ledger.HolderKilled, Holder: 7, From: at(0), To: at(1)})
		if err := l.Read(dir); err != nil {
			t.Fatal(err)
		}
		b := l.Balance(0)
		crash := crashed{Point: tc.crash, IDs: []string{"m"}, PID: 7, At: at(0)}
		_, problems := blameCrashes(l.Messages(), []crashed{crash}, false)
		if wrong := len(b.Faults)+len(problems)+b.Extra[ledger.LostLease] > 0; wrong != tc.want {
			t.Errorf("%s: something is wrong: %t; %v, %q", name, wrong, b, problems)
		}
	}
}

// One row too many, or one of two runs, must not pass either.
func TestCrashPoints_APlantedRowIsNoticed(t *testing.T) {
	t.Parallel()
	price := func(pid, n int) crashPrice { return crashPrice{ID: "m", PID: pid, Fence: 1, N: n} }
	for name, tc := range map[string]struct {
		prices []crashPrice
		want   []ledger.Kind
	}{
		"of one run":  {[]crashPrice{price(1, 0), price(1, 1)}, nil},
		"of two runs": {[]crashPrice{price(1, 0), price(2, 1)}, []ledger.Kind{ledger.Unexplained}},
		"a part":      {[]crashPrice{price(1, 0)}, []ledger.Kind{ledger.Missing}},
		"again":       {[]crashPrice{price(1, 0), price(1, 1), price(1, 1)}, []ledger.Kind{ledger.Unexplained}},
	} {
		l := ledger.New(nil)
		l.Want("m", "price 0", "price 1")
		for id, rows := range pricesOf(tc.prices) {
			for _, row := range rows {
				l.Found(id, row)
			}
		}
		var got []ledger.Kind
		for _, f := range l.Balance(0).Faults {
			got = append(got, f.Kind)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// pricesOf are the outputs of each message. Those of a second run are rows that nobody wants.
func pricesOf(prices []crashPrice) map[string][]string {
	all, first := map[string][]string{}, map[string]crashPrice{}
	for _, p := range prices {
		row := fmt.Sprint("price ", p.N)
		of, seen := first[p.ID]
		if !seen {
			first[p.ID] = p
		} else if of.PID != p.PID || of.Fence != p.Fence {
			all[p.ID] = append(all[p.ID], fmt.Sprintf("%s of another run", row))
		}
		all[p.ID] = append(all[p.ID], row)
	}
	return all
}
