package franz

import (
	"errors"
	"fmt"
)

// SetupError says that a client, or what it finds at the broker, is not as a worker needs it, and what to set. From
// Check, nothing was consumed.
type SetupError struct {
	Problem string
	Err     error // what the broker said; may be nil
}

func (e *SetupError) Error() string {
	if e.Err != nil {
		return "franz: " + e.Problem + ": " + e.Err.Error()
	}
	return "franz: " + e.Problem
}

// Unwrap returns what the broker said.
func (e *SetupError) Unwrap() error { return e.Err }

// AccessError says that a broker refuses what the worker cannot go on without: a right is missing, a topic is gone, the
// group does not take the member. A topic that is deleted while it is consumed is noticed only when the broker says so,
// at the latest when it is made again. What was settled before is committed as far as the broker lets it: before Kafka 3.1 also for
// a topic of the same name that was made meanwhile, and before 4.2 for one that was made within the last half second or so, of which the
// broker may not know yet; so stop workers before.
type AccessError struct {
	Topic string // empty if it is about the group
	Group string
	Need  string // what has to be given or changed
	Err   error  // what the broker said
}

func (e *AccessError) Error() string {
	if e.Topic != "" {
		return fmt.Sprintf("franz: group %q cannot consume topic %q: %v; %s", e.Group, e.Topic, e.Err, e.Need)
	}
	return fmt.Sprintf("franz: cannot consume as group %q: %v; %s", e.Group, e.Err, e.Need)
}

// Unwrap returns what the broker said.
func (e *AccessError) Unwrap() error { return e.Err }

// CommitError says that the broker has not confirmed what is settled: offsets, or acknowledgements of a share group. Nothing
// is lost: these records are delivered again, and duplicates are suppressed.
type CommitError struct {
	Group string
	Err   error
}

func (e *CommitError) Error() string {
	return fmt.Sprintf("franz: what group %q has settled is not confirmed: %v", e.Group, e.Err)
}

// Unwrap returns why.
func (e *CommitError) Unwrap() error { return e.Err }

// Why the contexts of handlers end before the handlers do.
var (
	errRevoked = errors.New("franz: partition was revoked, and its new owner cannot wait any longer")
	errLost    = errors.New("franz: partition was lost: the member was put out of its group")
	errGrace   = errors.New("franz: shutdown, and Config.Grace is over")
)

// stoppingError keeps a handler from starting when its partition is being given up.
type stoppingError struct{}

func (stoppingError) Error() string { return "franz: partition is being given up" }

// Uncounted makes the guard give the attempt back.
func (stoppingError) Uncounted() bool { return true }
