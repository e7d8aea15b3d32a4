package rpctest

import (
	"context"
	"strconv"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
)

// Run tests a library.
func Run(t *testing.T, lib Library) {
	s := suite{lib}
	for name, test := range map[string]func(*testing.T){
		"a repeat gets the stored response":                  s.repeat,
		"keys are read as over HTTP":                         s.keys,
		"accounts, methods and groups are kept apart":        s.apart,
		"a call that runs is a conflict":                     s.inProgress,
		"calls may wait for the response of the first":       s.waiting,
		"statuses are outcomes":                              s.statuses,
		"other errors release the key":                       s.errors,
		"calls may share an error":                           s.shared,
		"errors that steer":                                  s.steering,
		"harmless refusals give the key back":                s.released,
		"released failures of the server count":              s.releasedFailures,
		"a panic goes on and releases the key":               s.panics,
		"a parked run is answered with an unknown outcome":   s.parked,
		"a client that goes does not stop the run":           s.leaving,
		"a run ends some time after its client":              s.lingering,
		"without a store nothing runs":                       s.storeDown,
		"a run that lost its claim does not count":           s.claimLost,
		"a response that cannot be stored is sent":           s.unrecorded,
		"a record of another program is no response":         s.foreign,
		"a response over the limit is sent once":             s.tooLarge,
		"metadata is kept by name, credentials are not":      s.metadata,
		"what goes past the guard":                           s.passing,
		"keys in a field":                                    s.fields,
		"responses that nobody can ask for are not stored":   s.unasked,
		"2,000 equal calls at once make one run":             s.crowd,
		"over an inbox/writes and response appear together":  s.inbox,
		"over an inbox/every error rolls back":               s.inboxErrors,
		"over an inbox/a repeated transaction":               s.inboxAgain,
		"over an inbox/a response over the limit is refused": s.inboxTooLarge,
		"over an inbox/commits that fail":                    s.inboxFaults,
		"a client keeps its key over retries":                s.client,
		"a client knows what counts":                         s.clientCounts,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

const (
	ok, unknown, invalidArgument, alreadyExists, permissionDenied = 0, 2, 3, 6, 7
	failedPrecondition, aborted, unimplemented, internal          = 9, 10, 12, 13
	notFound, resourceExhausted, unavailable                      = 5, 8, 14
)

// charging is a handler that has an effect and says which.
func charging(l *keytest.Ledger) Handler {
	return func(ctx context.Context, procedure, value string) (string, error) {
		run := oncemill.FromContext(ctx)
		l.Add(run.Key.ID)
		return "charged " + value + " " + run.ID("payments"), nil
	}
}

// shop is a service that charges.
func (s suite) shop(t testing.TB, set Settings) (*Rig, *keytest.Ledger) {
	t.Helper()
	l := &keytest.Ledger{}
	return s.memory(t, set, charging(l)), l
}

// answering returns one error after another, the last one for ever.
func answering(l *keytest.Ledger, results ...error) Handler {
	return func(context.Context, string, string) (string, error) {
		n := l.Add("")
		return "run " + strconv.Itoa(n), results[min(n, len(results))-1]
	}
}
