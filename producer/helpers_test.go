package producer_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
)

// wantInvalid checks that an error is an *InvalidError for the field, and returns it.
func wantInvalid(t testing.TB, err error, field string) *dedupstore.InvalidError {
	t.Helper()
	var invalid *dedupstore.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error %v (%T), want an *InvalidError for %q", err, err, field)
	}
	if invalid.Field != field {
		t.Errorf("the error is for %q, want %q: %v", invalid.Field, field, err)
	}
	return invalid
}

var long = strings.Repeat("x", 513)
