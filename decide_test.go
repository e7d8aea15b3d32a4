package oncemill

import (
	"errors"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// The fate of a run that returned an error: each row of the table in verdict.go.
func TestDecide_FollowsItsTable(t *testing.T) {
	t.Parallel()
	const minute, hour = time.Minute, time.Hour
	plain := errors.New("declined")
	conflict := &dedupstore.ConflictError{Err: plain}
	released := func(delay time.Duration, uncounted bool) verdict {
		return verdict{release: &dedupstore.Release{Delay: delay, Uncounted: uncounted}}
	}
	failed := verdict{outcome: dedupstore.Outcome{Kind: dedupstore.Failed}}
	exhausted := verdict{outcome: dedupstore.Outcome{Kind: dedupstore.Failed, Exhausted: true}}
	unknown := verdict{outcome: dedupstore.Outcome{Kind: dedupstore.Unknown}}
	for _, c := range []struct {
		name              string
		err               error
		attempt, returned int
		interrupted       bool
		retakes, parks    verdict
	}{
		{"an error", plain, 1, 0, false, released(minute, false), unknown},
		{"an error, of the last attempt", plain, 3, 0, false, exhausted, unknown},
		{"Permanent", Permanent(plain), 1, 0, false, failed, failed},
		{"Permanent, interrupted", Permanent(plain), 1, 0, true, failed, failed},
		{"NoEffect", NoEffect(plain), 1, 0, false, released(minute, false), released(minute, false)},
		{"NoEffect, of the last attempt", NoEffect(plain), 3, 0, false, exhausted, exhausted},
		{"RetryAfter", RetryAfter(hour, plain), 1, 0, false, released(hour, false), unknown},
		{"RetryAfter, of years", RetryAfter(9000*hour*24, plain), 1, 0, false, released(longestDelay, false), unknown},
		{"RetryAfter, of the last attempt", RetryAfter(hour, plain), 3, 0, false, exhausted, unknown},
		{"Uncounted", Uncounted(plain), 3, 9, false, released(minute, true), unknown},
		{"Uncounted, later", Uncounted(RetryAfter(hour, plain)), 3, 9, false, released(hour, true), unknown},
		{"Uncounted without effect", Uncounted(NoEffect(plain)), 3, 9, false, released(minute, true), released(minute, true)},
		{"interrupted", plain, 3, 2, true, released(0, true), unknown},
		{"interrupted without effect", NoEffect(plain), 3, 2, true, released(0, true), released(0, true)},
		{"interrupted too often", plain, 2, 3, true, released(minute, false), unknown},
		{"interrupted too often, of the last attempt", plain, 3, 3, true, exhausted, unknown},
		{"a conflict", conflict, 3, 2, false, released(minute, true), unknown},
		{"a conflict without end", conflict, 3, 3, false, exhausted, unknown},
		{"an error of another guard", &Error{Result: Result{Status: StatusDone, Handler: Permanent(plain)}}, 1, 0, false,
			released(minute, false), unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			claim := &dedupstore.Claim{Attempt: c.attempt, Returned: c.returned}
			for _, on := range []struct {
				expired ExpiredLease
				want    verdict
			}{{Retake, c.retakes}, {Park, c.parks}} {
				policy := &Policy{MaxAttempts: 3, ExpiredLease: on.expired, Backoff: Backoff{Min: minute, Max: minute}}
				got := decide(policy, claim, c.err, c.interrupted)
				if got.outcome.Kind != on.want.outcome.Kind || got.outcome.Exhausted != on.want.outcome.Exhausted ||
					(got.release == nil) != (on.want.release == nil) {
					t.Errorf("%s: %+v, want %+v", on.expired, got, on.want)
					continue
				}
				if got.release == nil {
					continue
				}
				delay, want := got.release.Delay, on.want.release.Delay
				if want == minute && (delay < minute*4/5 || delay > minute) || want != minute && delay != want {
					t.Errorf("%s: due after %v, want %v", on.expired, delay, want)
				}
				if got.release.Uncounted != on.want.release.Uncounted || got.release.Reason != reason(c.err) {
					t.Errorf("%s: %+v, want %+v", on.expired, *got.release, *on.want.release)
				}
			}
		})
	}
}

func TestPolicy_KeepsStepsForTheWindowsOfTheirMessage(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for want, p := range map[time.Duration]Policy{
		3 * day:       {Window: day, FailureWindow: 2 * day},
		4 * day:       {Window: 2 * day, FailureWindow: day},
		longestWindow: {Window: longestWindow, FailureWindow: day},
	} {
		if got := p.keepsSteps(); got != want {
			t.Errorf("%v with %v after a failure: %v, want %v", p.Window, p.FailureWindow, got, want)
		}
	}
}
