package natskv

import (
	"context"
	"errors"
	"fmt"
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
	codeAccountResources = 10002
	codeNoResources      = 10023
	codeMemoryResources  = 10028
	codeStorageResources = 10047
	codeStoreFailed      = 10077 // such as a bucket that is full
	codeTTLDisabled      = 10166
)

// setup is an error of the bucket.
func (s *Store) setup(problem string, err error) error {
	return &dedupstore.SetupError{
		Package: "natskv", Subject: fmt.Sprintf("bucket %q", s.bucket), Problem: problem, Err: err,
	}
}

// failed makes an error of one of the client.
func (s *Store) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.setup("is missing: create it, such as by natskv.Bucket", err)
	}
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return s.setup("needs JetStream: enable it on the server, and for the account", err)
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeTTLDisabled:
			return s.setup(noTTL, err)
		case codeAccountResources, codeNoResources, codeMemoryResources, codeStorageResources, codeStoreFailed,
			jetstream.JSErrCodeStreamMessageExceedsMaximum:
			return fmt.Errorf("natskv: bucket %q: %w: %w", s.bucket, dedupstore.ErrFull, err)
		}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		// Only the connection hears that a request was refused.
		if last := s.js.Conn().LastError(); errors.Is(last, nats.ErrPermissionViolation) {
			return s.setup("did not answer, and the client's user lacks a right: allow what the package doc of natskv "+
				"lists", last)
		}
		return fmt.Errorf("natskv: bucket %q: no answer within %v", s.bucket, answerWithin)
	}
	return fmt.Errorf("natskv: bucket %q: %w", s.bucket, err)
}
