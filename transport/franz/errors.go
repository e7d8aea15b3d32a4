package franz

import (
	"errors"
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrUnconfirmed says that the broker has not confirmed what is settled. Nothing is lost: these records are
// delivered again, and duplicates are suppressed.
var ErrUnconfirmed = errors.New("franz: what was settled is not confirmed, and is delivered again")

func unconfirmed(group string, err error) error {
	return fmt.Errorf("%w: group %q: %w", ErrUnconfirmed, group, err)
}

// setupError says what does not fit, and what to do.
func setupError(subject, format string, args ...any) error {
	return refused(nil, subject, format, args...)
}

// refused is a setupError that comes from an answer of the broker.
func refused(err error, subject, format string, args ...any) error {
	return &dedupstore.SetupError{
		Package: "franz", Subject: subject, Problem: fmt.Sprintf(format, args...), Err: err,
	}
}

const theClient = "the client"

func theTopic(name string) string { return fmt.Sprintf("topic %q", name) }

func theGroup(name string) string { return fmt.Sprintf("group %q", name) }

// Why the contexts of handlers end before the handlers do.
var (
	errRevoked = errors.New("franz: partition was revoked, and its new owner cannot wait any longer")
	errLost    = errors.New("franz: partition was lost: the member was put out of its group")
	errGrace   = errors.New("franz: shutdown, and Config.Grace is over")
)
