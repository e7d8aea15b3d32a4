package dedupstore

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxReason is the longest reason of an outcome or a release, in bytes. Engines cut longer ones.
const MaxReason = 1024

// MaxHolder is the longest name of a holder, in bytes.
const MaxHolder = 22

const maxTrace = 64

// Validate reports the first field that breaks its documented limits, as an [*InvalidError]. Stores call it first.
func (r Request) Validate() error {
	if err := r.Key.Validate(); err != nil {
		return err
	}
	if err := validOwner("Request.Owner", r.Owner); err != nil {
		return err
	}
	if err := validDuration("Request.Lease", r.Lease); err != nil {
		return err
	}
	if err := validDuration("Request.Retention", r.Retention); err != nil {
		return err
	}
	if err := r.Fingerprint.validate(); err != nil {
		return err
	}
	switch {
	case r.MaxAttempts < 1:
		return invalid("Request.MaxAttempts", fmt.Sprintf("is %d, want at least 1", r.MaxAttempts))
	case r.SuspectAfter < 0 || r.SuspectAfter > 9:
		return invalid("Request.SuspectAfter", fmt.Sprintf("is %d, want 0 to 9", r.SuspectAfter))
	case r.Trace != "" && textProblem(r.Trace, maxTrace) != "":
		return invalid("Request.Trace", textProblem(r.Trace, maxTrace))
	case r.Holder != "" && textProblem(r.Holder, MaxHolder) != "":
		return invalid("Request.Holder", textProblem(r.Holder, MaxHolder))
	}
	return nil
}

// validateFirst is Validate for TxRun.First.
func (r *Request) validateFirst() error {
	switch {
	case r.ParkExpired:
		return invalid("Request.ParkExpired", "is set: a first run without a claim leaves no trace when it crashes")
	case r.Rerun != 0:
		return invalid("Request.Rerun", "is set: a rerun is not the first")
	}
	return r.Validate()
}

// Validate reports a claim that no store granted, as an [*InvalidError].
func (c Claim) Validate() error {
	if err := c.Key.Validate(); err != nil {
		return err
	}
	if err := validOwner("Claim.Owner", c.Owner); err != nil {
		return err
	}
	if c.Fence == 0 {
		return invalid("Claim.Fence", "is zero")
	}
	if err := validDuration("Claim.Lease", c.Lease); err != nil {
		return err
	}
	return validDuration("Claim.Retention", c.Retention)
}

// Validate reports the first field that breaks its documented limits, as an [*InvalidError].
func (x Extension) Validate() error {
	if err := x.Claim.Validate(); err != nil {
		return err
	}
	return validDuration("Extension.Lease", x.Lease)
}

// ValidateSettlement reports the first field that breaks its documented limits, as an [*InvalidError].
func ValidateSettlement(s Settlement) error {
	switch s := s.(type) {
	case Finish:
		if err := s.Outcome.validate(); err != nil {
			return err
		}
		return validDuration("Finish.Retention", s.Retention)
	case Release:
		if s.Delay < 0 || s.Delay > maxDuration {
			return invalid("Release.Delay", fmt.Sprintf("is %v, want 0 to %v", s.Delay, maxDuration))
		}
		return validReason("Release.Reason", s.Reason)
	case Published:
		if err := validProduced("Published.Produced", s.Produced); err != nil {
			return err
		}
		return validDuration("Published.Retention", s.Retention)
	}
	return invalid("Settlement", fmt.Sprintf("is %T, want Finish, Release or Published", s))
}

func (o Outcome) validate() error {
	switch {
	case o.Kind != Succeeded && o.Kind != Failed && o.Kind != Unknown:
		return invalid("Outcome.Kind", fmt.Sprintf("is %q", o.Kind))
	case o.Exhausted && o.Kind != Failed:
		return invalid("Outcome.Exhausted", "is set although Kind is "+string(o.Kind))
	}
	if err := validReason("Outcome.Reason", o.Reason); err != nil {
		return err
	}
	return validProduced("Outcome.Produced", o.Produced)
}

func validProduced(field string, produced []Produced) error {
	for i, p := range produced {
		if problem := textProblem(p.ID, MaxID); problem != "" {
			return invalid(fmt.Sprintf("%s[%d].ID", field, i), problem)
		}
	}
	return nil
}

func (f Fingerprint) validate() error {
	if f.IsZero() {
		return nil
	}
	if f.Scheme == "" || len(f.Scheme) > 64 || !isToken(f.Scheme, ".") {
		return invalid("Request.Fingerprint.Scheme",
			fmt.Sprintf("is %q, want 1 to 64 letters, digits, '-', '.', '_'", f.Scheme))
	}
	if f.Sum == "" || len(f.Sum) > 128 || !isToken(f.Sum, "") {
		return invalid("Request.Fingerprint.Sum",
			fmt.Sprintf("is %q, want 1 to 128 characters of base64url", f.Sum))
	}
	return nil
}

func validOwner(field, owner string) error {
	if len(owner) < 16 || len(owner) > 64 || !isToken(owner, "") {
		return invalid(field, "is not a token of 16 to 64 letters, digits, '-', '_'")
	}
	return nil
}

// isToken reports whether a text is of letters, digits, '-', '_' and further bytes.
func isToken(s, further string) bool {
	for i := range len(s) {
		if c := s[i]; !ofTokens[c] && strings.IndexByte(further, c) < 0 {
			return false
		}
	}
	return true
}

// ofTokens has the bytes that every token may have.
var ofTokens = func() (known [256]bool) {
	for _, c := range []byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") {
		known[c] = true
	}
	return known
}()

// maxDuration keeps sums of a time, a lease and a retention far from overflow in every store.
const maxDuration = 100 * 365 * 24 * time.Hour

func validDuration(field string, d time.Duration) error {
	if d < time.Millisecond || d > maxDuration {
		return invalid(field, fmt.Sprintf("is %v, want 1ms to %v", d, maxDuration))
	}
	return nil
}

func validReason(field, reason string) error {
	if len(reason) > MaxReason {
		return invalid(field, fmt.Sprintf("is %d bytes long, the limit is %d", len(reason), MaxReason))
	}
	if !utf8.ValidString(reason) {
		return invalid(field, "is not valid UTF-8")
	}
	return nil
}
