package rabbittest_test

import (
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/rabbittest"
)

func TestStart_SkipsOrFailsWithoutTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short asks for no server")
	}
	t.Setenv("PATH", "")
	for ci, want := range map[string]string{"": "skip", "true": "fatal"} {
		t.Setenv("CI", ci)
		t.Setenv(testserver.UsedFile, "")
		if got := testserver.EndOf(t, func(tb testing.TB) { rabbittest.Start(tb) }); got != want {
			t.Errorf("CI=%q: the test ends by %q, want %q", ci, got, want)
		}
	}
}
