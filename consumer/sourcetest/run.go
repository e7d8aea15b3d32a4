package sourcetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/consumer"
)

// A Subject is an empty topic of a broker, and how the members of one group consume it. Topic, Open, Publish and Left
// are required.
type Subject struct {
	// Topic is what Source.Check and Source.Run get.
	Topic string

	// Open returns the source of a new member of the group, as a process of its own would have it.
	Open func(m Member) consumer.Source

	// Publish appends messages to the topic, in this order, and returns when the broker has them. It must not drop one
	// whose ID it has seen.
	Publish func(messages ...Message)

	// Left is how many messages the broker would still deliver, now or later. It is called when no member runs, and,
	// where LoseAcks is set, also while one does.
	Left func() int

	// Lacks has what the source does not promise, and why.
	Lacks map[Capability]string

	// AckWait is after how long the broker delivers a message again whose member says nothing. Zero: it waits for ever.
	AckWait time.Duration

	// Guard runs a member whose handler is guarded by m.Once, until ctx ends, as Source.Run does. It is for sources
	// whose guard stands elsewhere, such as in a Router. Nil: the suite guards the deliveries of the source.
	Guard func(ctx context.Context, m Member, handle consumer.Handler) error

	// Batches runs a member like Guard, with a handler of batches. It gets the IDs of the messages, and returns an
	// error for each, or nil. Nil: there are no batches.
	Batches func(ctx context.Context, m Member, handle func(ctx context.Context, ids []string) []error) error

	// Deliveries is how often the broker has delivered a message of the topic, redeliveries included. Nil: the broker
	// does not count, or has no limit to deliveries.
	Deliveries func() int

	// Restart stops the broker and starts it again, with what it had stored. Nil: it cannot be restarted.
	Restart func()

	// LoseAcks loses what members tell the broker of their messages, until restore is called. Nil: nothing can.
	LoseAcks func() (restore func())

	// Cut cuts a member off from the broker, which then gives its messages to others, until heal is called. Nil: no
	// member can be.
	Cut func(member consumer.Source) (heal func())
}

// A Member is how a process of the group is configured.
type Member struct {
	Once        *consumer.Processor // what Source.Processor returns
	MaxInFlight int                 // zero: the default of the source
	Grace       time.Duration       // zero: longer than a case takes
}

// A Message is published with its ID as header [producer.HeaderID]. Messages with a Key keep their order among
// themselves; "" is no key.
type Message struct {
	ID, Key string
	Payload []byte
}

// A Capability is a part of the contract that not every broker, or not every adapter, can keep.
type Capability string

// Capabilities.
const (
	Order       Capability = "order"       // messages with a key are handled one after the other, as published
	Concurrency Capability = "concurrency" // several messages at once; one that waits holds up none without its key
	Rejection   Capability = "rejection"   // a rejected message is not delivered again
	Room        Capability = "room"        // messages that wait for busy keys leave room for one that is free
	Sparing     Capability = "sparing"     // busy keys and outages use up no delivery
	Drain       Capability = "drain"       // calls go on when Run is to end, and their decisions reach the broker
	Grace       Capability = "grace"       // and they have as long as Member.Grace says
	Members     Capability = "members"     // several members share the messages
	End         Capability = "end"         // nothing is left running when Run has returned
)

// Run tests a source. It calls open once for each case, in a parallel subtest with its own topic. What open needs
// closed it closes with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	each(t, func(t *testing.T, c testCase, r *report) { c.check(t, open(t), r) })
}

// RunVirtual is Run for a source whose broker lives in this process. Each case, with its open, runs in a bubble of
// virtual time (package testing/synctest).
func RunVirtual(t *testing.T, open func(t *testing.T) Subject) {
	each(t, func(t *testing.T, c testCase, r *report) {
		skipped := false
		synctest.Test(t, func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			c.check(t, open(t), r)
		})
		if skipped { // the bubble does not say so
			t.SkipNow()
		}
	})
}

func each(t *testing.T, test func(t *testing.T, c testCase, r *report)) {
	r := &report{}
	t.Cleanup(func() { t.Log(r) })
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test(t, c, r)
		})
	}
}

// cases are all cases. Read failures in this order: a source that fails an early case fails many.
var cases = slices.Concat(decisionCases, guardCases, orderCases, drainCases, faultCases, batchCases)

type testCase struct {
	name  string       // area/promise
	why   string       // what goes wrong with a source that fails, as one sentence
	needs []Capability // the source lacks none of them
	hook  func(s *Subject) string
	test  func(k *kit)
}

// missing says what a subject lacks for the case, or "".
func (c testCase) missing(s *Subject) string {
	for _, need := range c.needs {
		if why, lacks := s.Lacks[need]; lacks {
			return fmt.Sprintf("the source lacks %s: %s", need, why)
		}
	}
	if c.hook != nil {
		return c.hook(s)
	}
	return ""
}

func (c testCase) check(tb testing.TB, s Subject, r *report) {
	tb.Helper()
	if s.Topic == "" || s.Open == nil || s.Publish == nil || s.Left == nil {
		tb.Fatal("Subject.Topic, Open, Publish or Left is missing")
	}
	if missing := c.missing(&s); missing != "" {
		r.add(c.name, missing)
		tb.Skip("skipped: " + missing)
	}
	k := newKit(tb, s)
	defer func() {
		k.close()
		if tb.Failed() {
			r.add(c.name, "FAILED")
			tb.Logf("why %s matters: %s", c.name, c.why)
		} else {
			r.add(c.name, "passed")
		}
	}()
	c.test(k)
}

// A report is what became of the cases.
type report struct {
	mu    sync.Mutex
	lines []string
}

func (r *report) add(name, what string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, name+": "+what)
}

func (r *report) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.lines)
	return "sourcetest:\n  " + strings.Join(r.lines, "\n  ")
}
