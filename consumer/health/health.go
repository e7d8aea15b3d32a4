// Package health is how operators learn what is wrong with servers, and how far consumers are behind: natsjs.Diagnose,
// franz.Diagnose, natsjs.Lag and franz.Lag look, and the command oncemill and the console show it.
package health

import (
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
)

// Severities of findings.
const (
	Loses  = "error"   // it can lose messages or make effects twice, or programs refuse to work with it
	Unwise = "warning" // it works, and should be changed
)

// A Finding is what is wrong with a server.
type Finding struct {
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
	Finding  string `json:"finding"` // what is set, what that means, and what to set
}

// A Report is what a look at servers found. Its zero value is ready for use.
type Report struct {
	Looked []string // what it looked at, for people
	Found  []Finding
}

// A Rule is a finding if it is broken.
type Rule struct {
	broken            bool
	severity, finding string
}

// LosesIf is a rule of the severity Loses.
func LosesIf(broken bool, finding string) Rule { return Rule{broken, Loses, finding} }

// UnwiseIf is a rule of the severity Unwise.
func UnwiseIf(broken bool, finding string) Rule { return Rule{broken, Unwise, finding} }

// Judge adds the rules that a subject breaks.
func (r *Report) Judge(subject string, rules ...Rule) {
	for _, rule := range rules {
		if rule.broken {
			r.Found = append(r.Found, Finding{rule.severity, subject, rule.finding})
		}
	}
}

// A Lag is how far a consumer is behind a topic.
type Lag struct {
	Consumer    string `json:"consumer"`
	Topic       string `json:"topic"`
	Waiting     int64  `json:"waiting"`           // messages that it has not got
	InFlight    int    `json:"in_flight"`         // that it has got and not acknowledged; JetStream
	Redelivered int    `json:"redelivered"`       // of those, that came more than once; JetStream
	Members     int    `json:"members,omitempty"` // of the group; Kafka
}

// Defaults returns a policy with its defaults filled in, and how long the attempts of a message wait for each other at
// most. The error names a field that is not valid.
func Defaults(p oncemill.Policy) (filled oncemill.Policy, retries time.Duration, err error) {
	memory, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		return p, 0, err
	}
	guard, err := oncemill.NewGuard(memory, p)
	if err != nil {
		return p, 0, err
	}
	defer guard.Close()
	p = guard.Policy()
	for attempt, wait := 1, p.Backoff.Min; attempt < p.MaxAttempts; attempt++ {
		retries += wait
		wait = min(2*wait, p.Backoff.Max)
	}
	return p, retries, nil
}
