package natskv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
)

// answerWithin is how long a request waits for its answer, as JetStream's own do.
const answerWithin = 5 * time.Second

// maxHeaders is how much room the headers of a record take.
const maxHeaders = 256

// Codes of JetStream that nats.go has no names for.
const (
	codeAccountResources  = 10002
	codeNoResources       = 10023
	codeMemoryResources   = 10028
	codeStorageResources  = 10047
	codeStoreFailed       = 10077 // such as a bucket that is full
	codeDuplicateInFlight = 10158
	codeTTLDisabled       = 10166
	codeTooManyRequests   = 10167
	codeBatchIncomplete   = 10176 // or a message of it has the subject of another stream
	codeBatchDuplicate    = 10201
	codeBatchesInFlight   = 10210
)

// setup is an error of the bucket or stream.
func (s *Store) setup(problem string, err error) error {
	return &dedupstore.SetupError{
		Package: "natskv", Subject: s.String(), Problem: problem, Err: err,
	}
}

// failed makes an error of one of the client, whose request may have had other subjects than those of the store.
func (s *Store) failed(ctx context.Context, err error, subjects ...string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.setup("is missing: create it, such as by natskv.Bucket or natskv.Stream", err)
	}
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return s.setup("needs JetStream: enable it on the server, and for the account", err)
	}
	if errors.Is(err, nats.ErrPermissionViolation) {
		return s.setup("refuses what the client's user lacks a right for: allow what the package doc of natskv "+
			"lists, and to publish to the subjects of outputs", err)
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeTTLDisabled:
			return s.setup(noTTL, err)
		case codeAccountResources, codeNoResources, codeMemoryResources, codeStorageResources, codeStoreFailed:
			return fmt.Errorf("natskv: %v: %w: %w", s, dedupstore.ErrFull, err)
		case jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return fmt.Errorf("natskv: %v: %w: %w", s, dedupstore.ErrTooLarge, err)
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		if refused := s.refused(subjects); refused != nil {
			return s.setup("did not answer, and the client's user lacks a right: allow what the package doc of natskv "+
				"lists", refused)
		}
		return fmt.Errorf("natskv: %v: no answer within %v", s, answerWithin)
	}
	return fmt.Errorf("natskv: %v: %w", s, err)
}

// refused is what the connection has heard of a right that requests of the store, or some subjects, need. Only the
// connection hears that one was refused, and it keeps what it heard last, which others on it may have caused long ago.
func (s *Store) refused(subjects []string) error {
	conn := s.js.Conn()
	last := conn.LastError()
	ours := append([]string{s.api, s.prefix + ".", cmp.Or(conn.Opts.InboxPrefix, "_INBOX")}, subjects...)
	if !slices.ContainsFunc(ours, func(begin string) bool { return refuses(last, begin) }) {
		return nil
	}
	return last
}

// refuses reports whether an error is a missing right of a subject that begins so.
func refuses(err error, begin string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+begin)
}

// refusesPublish reports whether an error is a missing right to publish to a subject.
func refusesPublish(err error, subject string) bool {
	return errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `Publish to "`+subject+`"`)
}

func isCode(err error, code jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == code
}
