package sqlstore_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/sqlstore"
)

func TestMicros_NothingEndsEarly(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, time.Second: 1e6} {
		if got := sqlstore.Micros(d); got != want {
			t.Errorf("%v is %d µs, want %d", d, got, want)
		}
		if got := sqlstore.MicrosAt(time.Unix(1, int64(d))); got != 1e6+want {
			t.Errorf("a second and %v is %d, want %d", d, got, 1e6+want)
		}
	}
	if got := sqlstore.MicrosAt(time.Time{}); got != 0 || !sqlstore.TimeAt(got).IsZero() {
		t.Errorf("no time is %d, and read as %v", got, sqlstore.TimeAt(got))
	}
	if got := sqlstore.TimeAt(1e6 + 1); !got.Equal(time.Unix(1, 1000)) {
		t.Errorf("a second and a microsecond is %v", got)
	}
}

func TestDuration_IsNotNegative(t *testing.T) {
	t.Parallel()
	for micros, want := range map[int64]time.Duration{math.MinInt64: 0, -1: 0, 0: 0, 1500: 1500 * time.Microsecond} {
		if got := sqlstore.Duration(micros); got != want {
			t.Errorf("%d is %v, want %v", micros, got, want)
		}
	}
}

func TestValidateName_SaysWhere(t *testing.T) {
	t.Parallel()
	if err := sqlstore.ValidateName("pgstore", "Table", strings.Repeat("x", 40)); err != nil {
		t.Error(err)
	}
	err := sqlstore.ValidateName("pgstore", "Table", strings.Repeat("x", 41))
	invalid, is := errors.AsType[*dedupstore.InvalidError](err)
	if !is || invalid.Package != "pgstore" || invalid.Field != "Table" || !strings.Contains(invalid.Problem, "40") {
		t.Errorf("a name of 41 bytes: %#v", err)
	}
}
