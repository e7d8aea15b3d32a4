package console

import (
	"context"
	"time"
)

// A DeadLetterTopic is a topic of dead letters with a name for people and links.
type DeadLetterTopic struct {
	Name   string
	Source DeadLetters
}

// DeadLetters shows the dead letters of a topic, and runs their messages again.
type DeadLetters interface {
	// List returns letters, at most so many, and how many more there are.
	List(ctx context.Context, f DeadLetterFilter, limit int) (found []DeadLetter, more int, err error)

	// Show returns the letters with an ID, or of the message with it, with headers and payloads.
	Show(ctx context.Context, id string) ([]DeadLetter, error)

	// Predict says what a redrive would do, by reason. The plan is for Redrive to know what was shown; the console keeps
	// it for some minutes, and does not look into it.
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
	Reason string // a part of the reason
	ID     string // the letter's own, or that of the message
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
