// Package deadletters is how operators look at dead letters, and run their messages again: the contract between brokers
// and those who show letters, the command oncemill and the console. natsjs.NewDeadLetters and franz.NewDeadLetters make
// sources for JetStream and Kafka.
package deadletters

import (
	"context"
	"errors"
	"time"

	"github.com/oncemill/oncemill/producer"
)

// A Letter is a dead letter as its broker has it.
type Letter struct {
	producer.Message // its ID is the letter's own

	Position string    // where the broker has it
	Time     time.Time // when the broker got it
	Done     bool      // it is known to be redriven, or put aside
}

// Get returns a header.
func (l *Letter) Get(name string) string { return l.Header.Get(name) }

// Original is the ID of the message that failed.
func (l *Letter) Original() string { return l.Get(producer.HeaderOriginalID) }

// HasID reports whether an ID is that of the letter or of its message.
func (l *Letter) HasID(id string) bool { return id == l.ID || id == l.Original() }

// A Page is a part of a list, the newest letters first.
type Page struct {
	Letters []Letter
	Next    string // where the next page begins; empty: there is none
	Looked  int    // how many letters this page looked at
	Total   int    // how many the topic has, roughly
}

// A Source is a topic of dead letters. It is safe for concurrent use.
type Source interface {
	// Page returns the letters that are wanted, the newest first and at most so many, without payloads. After is empty
	// for the first page, then the Next of the page before. It looks for a moment only, and may return fewer although
	// there are more.
	Page(ctx context.Context, after string, most int, wanted func(*Letter) bool) (Page, error)

	// Each calls do with each letter that is there now, the oldest first, until do returns false.
	Each(ctx context.Context, r Reading, do func(Letter) bool) error

	// Show returns the letter at a position, with its payload. If letters stay when they are discarded, it says whether
	// this one is done. It is [ErrGone] if there is none any more.
	Show(ctx context.Context, position string) (Letter, error)

	// Discard puts letters aside for good: no redrive sends them. The broker removes them if it can.
	Discard(ctx context.Context, letters []Letter) error

	// Redrive begins to take letters.
	Redrive(ctx context.Context, t Taking) (Redrive, error)
}

// A Reading says what Source.Each reads.
type Reading struct {
	Left    bool // only what is still to be redriven
	Done    bool // set Letter.Done, if letters stay when they are discarded
	Payload bool
}

// A Taking says which letters a redrive takes.
type Taking struct {
	Until     time.Time    // it needs none that came later; zero: all
	Positions []string     // these; empty: all that are still to be redriven
	Wait      func(string) // is told why a redrive waits for another one; nil: nobody is
}

// A Redrive takes letters, one batch after the other. It is for one goroutine.
type Redrive interface {
	// Take returns letters, n at most. None: there are no more.
	Take(ctx context.Context, n int) ([]Letter, error)

	// Done notes that letters have been redriven.
	Done(ctx context.Context, sent []Letter) error

	// Publisher publishes their messages.
	Publisher() (producer.Publisher, error)

	// Close gives back what was taken and is not done.
	Close()
}

// ErrGone says that a letter was removed, or has expired.
var ErrGone = errors.New("deadletters: there is no letter at this position any more")
