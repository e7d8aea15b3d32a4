package testserver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestValkey_IsOptional(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	t.Setenv(usedFile, file)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CI", "true")
	t.Setenv(serversToUse, "")
	for named, want := range map[string]string{"": "skip", "/no/such/valkey-server": "fatal"} {
		t.Setenv(valkeyProgram, named)
		fake := &fakeTB{TB: t}
		func() {
			defer func() { recover() }()
			Valkey(fake)
		}()
		if fake.did != want {
			t.Errorf("with %s=%q: %q, want %q", valkeyProgram, named, fake.did, want)
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
	s := Valkey(t)
	if err := s.Client().Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Error(err)
	}
	s.Kill()
	s.Restart()
}
