package redistest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

func TestValkey_IsOptional(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	t.Setenv(testserver.UsedFile, file)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CI", "true")
	t.Setenv("ONCEMILL_TEST_SERVERS", "")
	for named, want := range map[string]string{"": "skip", "/no/such/valkey-server": "fatal"} {
		t.Setenv(valkeyProgram, named)
		did := testserver.EndOf(t, func(t testing.TB) { StartValkey(t) })
		if did != want {
			t.Errorf("with %s=%q: %q, want %q", valkeyProgram, named, did, want)
		}
	}
	want := "SKIPPED (optional): valkey-server is not in PATH, and ONCEMILL_TEST_VALKEY does not name one" +
		" (Debian 12: in backports)\n"
	if b, err := os.ReadFile(file); err != nil || string(b) != want {
		t.Errorf("recorded %q, %v", b, err)
	}
}

func TestValkey_Starts(t *testing.T) {
	t.Parallel()
	s := StartValkey(t)
	if err := s.Client().Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	s.Kill()
	s.Restart()
}
