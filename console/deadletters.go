package console

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

// A DeadLetterTopic is a topic of dead letters. Give it the topic's own name: records name the topic of their letters.
type DeadLetterTopic struct {
	Name   string
	Source DeadLetters
}

// DeadLetters shows the dead letters of a topic, and runs their messages again.
type DeadLetters interface {
	// List returns letters, at most so many, the newest first, and how many more there are.
	List(ctx context.Context, f DeadLetterFilter, limit int) (found []DeadLetter, more int, err error)

	// Show returns the letters with an ID, or of the message with it, with headers and payloads.
	Show(ctx context.Context, id string) ([]DeadLetter, error)

	// Predict says what a redrive would do, by reason. The plan is for Redrive to know what was shown; the console
	// keeps it for some minutes, and does not look into it.
	Predict(ctx context.Context, f DeadLetterFilter) (all []Prediction, plan any, err error)

	// Redrive publishes the messages that will run, and reports its progress. It sends only letters of the plan, to the
	// topics that were shown, and leaves those whose messages would no longer do what was shown. It stops if many fail
	// again.
	Redrive(ctx context.Context, r RedriveRequest) error
}

// A RedriveRequest asks for a redrive.
type RedriveRequest struct {
	DeadLetterFilter
	Plan     any            // what Predict returned
	Rate     int            // messages a second at most
	Who, Why string         // for an audit log
	On       func(Redriven) // is told the progress; never nil
}

// A DeadLetterFilter says which letters are meant. The zero value means all.
type DeadLetterFilter struct {
	Reason  string   // a part of the reason
	Pattern string   // the reason, with # for what differs, as Failures shows it
	IDs     []string // the letters' own, or those of their messages
}

// Matches reports whether a letter is meant.
func (f *DeadLetterFilter) Matches(d *DeadLetter) bool {
	return strings.Contains(d.Reason, f.Reason) && (f.Pattern == "" || operate.Pattern(d.Reason) == f.Pattern) &&
		(len(f.IDs) == 0 || slices.Contains(f.IDs, d.ID) || slices.Contains(f.IDs, d.Original))
}

// A DeadLetter is a copy of a message that failed.
type DeadLetter struct {
	ID, Original   string // its own ID, and that of the message
	Position       string // where the broker has it
	At             time.Time
	Handler, Topic string
	Outcome        string
	Reason         string
	Attempts       int
	Header         map[string]string
	Payload        []byte
}

// A Prediction is what a redrive would do with the letters of a reason.
type Prediction struct {
	Reason      string
	DeadLetters int
	Run         int // will run
	Unknown     int // will run although the outcome is unknown: the effect may happen twice
	Skipped     int // succeeded since, run now, are due, failed again since, have no record, or cannot be rerun

	// To has the topics that those which will run go to. The writer of the letters chose them.
	To []string
}

// Redriven is how far a redrive has come.
type Redriven struct {
	Sent, Left, Refused     int
	Succeeded, Failed, Open int // of those sent
}

// topicsOf are the names of the topics that have the dead letters of some failures: those that their records name, else
// all that are configured.
func (c *Console) topicsOf(records []dedupstore.Record) (named []string) {
	var all []string
	for _, t := range c.config.DeadLetters {
		all = append(all, t.Name)
		if slices.ContainsFunc(records, func(r dedupstore.Record) bool {
			return slices.ContainsFunc(r.Outcome.Produced,
				func(p dedupstore.Produced) bool { return p.Topic == t.Name })
		}) {
			named = append(named, t.Name)
		}
	}
	if len(named) == 0 {
		return all
	}
	return named
}

// A letterList is what somebody has seen of a topic a moment ago: a crowd reads the topic once.
type letterList struct {
	mu     sync.Mutex
	at     time.Time
	filter DeadLetterFilter
	found  []DeadLetter
	more   int
}

// lettersFor is how long others are shown the same list.
const lettersFor = 5 * time.Second

// list lists the letters of a topic. Those who ask at the same time wait for one read.
func (l *letterList) list(ctx context.Context, d DeadLetters, f DeadLetterFilter) ([]DeadLetter, int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.at) > lettersFor || f.Reason != l.filter.Reason {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // others wait for it, too
		defer cancel()
		found, more, err := d.List(ctx, f, pageSize)
		if err != nil {
			return nil, 0, err
		}
		l.at, l.filter, l.found, l.more = time.Now(), f, found, more
	}
	return l.found, l.more, nil
}
