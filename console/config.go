package console

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

// Config says what the console shows, and to whom. All of it is optional: a screen whose source is missing says what to
// configure.
type Config struct {
	Stores      []Store
	Outboxes    []Outbox
	DeadLetters []DeadLetterTopic

	// Counters returns how many deliveries there were so far. [Prometheus] makes one.
	Counters func(context.Context) ([]Counter, error)

	// Findings returns what is wrong with servers, beside what the stores' Check and the outboxes' Plan find: see
	// natsjs.Diagnose and franz.Diagnose. It is asked every five minutes, and on request.
	Findings func(context.Context) ([]health.Finding, error)

	// Lag returns how far consumers are behind: see natsjs.Lag and franz.Lag. It is asked every ten seconds while
	// somebody looks.
	Lag func(context.Context) ([]health.Lag, error)

	// Trace is a link to a trace; {trace} stands for its ID.
	Trace string

	// TraceSearch is a link to the traces of a message, its duplicates included; {id} stands for the message ID.
	TraceSearch string

	// Authorize says who asks, and whether they may do this. An error refuses; its text is shown. A page asks for every
	// action that it could offer, so Authorize has to be quick. Nil: nobody may do anything, not even look. [ViewOnly]
	// lets everybody look.
	Authorize func(*http.Request, Action) (who string, err error)

	// Hosts are the names under which browsers come here, without ports, besides localhost and IP addresses. Other
	// names are refused: a page of another site could have its own name lead here, and read what is shown. "*" stands
	// for all names: say so if Authorize knows people by what they send themselves, such as a password.
	Hosts []string

	// Audit is told of every change, whether it was made or refused. Logger has a line of each in any case.
	Audit func(context.Context, Entry)

	// Log returns the last changes that the audit log has, in any order. Nil: those that this console has made.
	Log func(context.Context) ([]Entry, error)

	// Notes remember which failures were archived. Nil: notes that are forgotten when the process ends.
	Notes *Notes

	// Every is how often live parts are sampled. Default 2 s; at least 100 ms.
	Every time.Duration

	// Rate is how many records or rows an action changes a second at most. Default 100.
	Rate int

	// Logger gets the lines of the audit log. Default slog.Default().
	Logger *slog.Logger
}

// A Store is a store of records with a name for people and links.
type Store struct {
	Name      string
	Inspector dedupstore.Inspector
}

// An Outbox is an outbox with a name for people and links. Rows can be replayed if it is an outbox.Replayer.
type Outbox struct {
	Name      string
	Inspector outbox.Inspector
}

// Outcomes of a Counter that counts failures.
const (
	Failed = "failed"  // runs that failed for good, or whose attempts were spent
	Parked = "unknown" // runs of unknown outcome
)

// A Counter counts deliveries: the metric of claims by its attributes, and that of failures, whose outcome is Failed or
// Parked. A delivery that failed is in both.
type Counter struct {
	Group, Handler string
	Outcome        string // such as "claimed" or "duplicate_completed"
	Cause          string // of duplicates, such as "producer_retry"; may be empty
	Count          int64  // since the process began
}

// An Entry is a line of the audit log: what became of a record, or of some rows or letters. Where is the name of the
// store, outbox or topic. Result is "changed", "sent", "discarded", "refused" or "failed"; after "failed", if an answer
// was lost, the change may have been made.
type Entry = operate.Entry

func (c Config) withDefaults() Config {
	if c.Authorize == nil {
		c.Authorize = func(*http.Request, Action) (string, error) { return "", errNobodyMay }
	}
	if c.Audit == nil {
		c.Audit = func(context.Context, Entry) {}
	}
	c.Notes = cmp.Or(c.Notes, &Notes{})
	c.Every = cmp.Or(c.Every, 2*time.Second)
	c.Rate = cmp.Or(c.Rate, 100)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

func (c Config) validate() error {
	named := map[string]bool{}
	check := func(kind, name string, missing bool) error {
		switch {
		case name == "":
			return invalid(kind, "has one without a name")
		case named[kind+name]:
			return invalid(kind, fmt.Sprintf("has two with the name %q", name))
		case missing:
			return invalid(kind, fmt.Sprintf("has %q without a source, give it one", name))
		}
		named[kind+name] = true
		return nil
	}
	var err error
	for _, s := range c.Stores {
		err = cmp.Or(err, check("Config.Stores", s.Name, s.Inspector == nil))
	}
	for _, o := range c.Outboxes {
		err = cmp.Or(err, check("Config.Outboxes", o.Name, o.Inspector == nil))
	}
	for _, d := range c.DeadLetters {
		err = cmp.Or(err, check("Config.DeadLetters", d.Name, d.Source == nil))
	}
	switch {
	case err != nil:
		return err
	case c.Every < 100*time.Millisecond:
		return invalid("Config.Every", fmt.Sprintf("is %v, want at least 100ms", c.Every))
	case c.Rate < 1:
		return invalid("Config.Rate", fmt.Sprintf("is %d, want at least 1", c.Rate))
	}
	return nil
}

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "console", Field: field, Problem: problem}
}
