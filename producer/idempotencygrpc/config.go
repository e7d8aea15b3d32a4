package idempotencygrpc

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/rpc"
)

// Config configures an Interceptor. Account must be set; everything else has a default.
type Config struct {
	// Account names the account that a call acts for. Take it from what an outer interceptor or middleware has put into
	// the context after authentication, never from what the client can choose: accounts never see each other's
	// responses, even with the same key. A repeat gets its response without the handler and its checks. If users may
	// not see each other's responses, make each one an account here. An error or an empty name is answered with
	// PERMISSION_DENIED. SingleTenant is for services with one account.
	Account func(context.Context) (string, error)

	// Group is the API that the keys belong to, as in dedupstore.Key: 1 to 128 bytes. Renaming it forgets all keys.
	// Empty: "rpc".
	Group string

	// KeyField is an option of methods, of your own, that names the field of the request which has the key. If that
	// field is empty, the metadata is read. New checks the methods that the program has. Nil: the metadata.
	KeyField protoreflect.ExtensionType

	// Required says which methods, such as /acme.v1.Payments/Pay, must have a key. The others run under a key made for
	// the call, so that a handler always has its Run and, with an inbox, its transaction. Nil: those that are not
	// marked as idempotent.
	Required func(procedure string) bool

	// Pass says which methods go past the guard, streams too. Those with NO_SIDE_EFFECTS always do. Nil: the services
	// grpc.health and grpc.reflection.
	Pass func(procedure string) bool

	// Release says which codes give their key back, instead of being kept for repeats: the next call with it runs the
	// handler. In an inbox, what the handler has written is rolled back, as with any error.
	//
	// It must mean that the handler had no effect, as NotFound, Unauthenticated or ResourceExhausted may. Such runs are
	// not counted. Runs that end with a code of the server's failure are: Unknown, DeadlineExceeded, Unimplemented,
	// Internal, Unavailable and DataLoss. They end after Policy.MaxAttempts, when the status is kept, and a policy that
	// parks keeps it at once. Nil: every status is kept.
	Release func(codes.Code) bool

	// Metadata are the names of headers and trailers that are kept with a response. Nothing else is: metadata may hold
	// credentials. Nil: etag, last-modified, link, location and retry-after.
	Metadata []string

	// MaxWait is how long a call waits for another one with its key, before ABORTED, or for a store that is down. Zero:
	// not at all.
	MaxWait time.Duration

	// WaitLimit bounds how many calls wait at once. Nil: no bound.
	WaitLimit *oncemill.WaitLimit
}

// SingleTenant is the Config.Account of a service that has one account only.
func SingleTenant(context.Context) (string, error) { return "default", nil }

// ErrClientGone is the cause of a handler's cancelled context when its client has been gone for 30 s.
var ErrClientGone = rpc.ErrClientGone

const keyHeader = "idempotency-key"

// ClientConfig configures a client interceptor. The zero value is ready to use.
type ClientConfig struct {
	// MaxAttempts is how often a call is sent at most. Zero: 5.
	MaxAttempts int

	// MaxElapsed is the latest time, from the beginning, at which a call is sent once more. Zero: 1 min.
	MaxElapsed time.Duration
}

// WithKey returns a context whose calls carry a key. It is for one call and its repeats: store the key before the first
// attempt if your program repeats calls, or after a restart. The server refuses another request with the same key.
func WithKey(ctx context.Context, key string) context.Context { return rpc.WithKey(ctx, key) }
