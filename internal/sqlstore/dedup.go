package sqlstore

import (
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// Micros is a duration in microseconds, rounded up: nothing ends early.
func Micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// Duration is that of as many microseconds, not negative: a clock may have been set back.
func Duration(micros int64) time.Duration { return time.Duration(max(micros, 0)) * time.Microsecond }

// TimeAt is a time as tables have it: microseconds since 1970; 0: none.
func TimeAt(micros int64) (t time.Time) {
	if micros != 0 {
		t = time.UnixMicro(micros)
	}
	return t
}

// MicrosAt is a time as tables have it, rounded up: nothing ends early.
func MicrosAt(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Add(time.Microsecond - 1).UnixMicro()
}

// ValidateName checks the name of a table or schema for a package. It needs no escaping in quotes, and has room for
// endings within PostgreSQL's 63 bytes.
func ValidateName(pkg, field, name string) error {
	if problem := NameProblem(name, 40); problem != "" {
		return &dedupstore.InvalidError{Package: pkg, Field: field, Problem: problem}
	}
	return nil
}
