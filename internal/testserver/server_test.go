package testserver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMissing_SkipsAndFailsWithCI(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	t.Setenv(UsedFile, file)
	for ci, want := range map[string]string{"": "skip", "false": "skip", "true": "fatal"} {
		t.Setenv("CI", ci)
		if did := EndOf(t, func(t testing.TB) { Missing(t, "nats-server is not in PATH") }); did != want {
			t.Errorf("CI=%q: %q, want %q", ci, did, want)
		}
	}
	line := "SKIPPED: nats-server is not in PATH\n"
	if b, err := os.ReadFile(file); err != nil || string(b) != line+line {
		t.Errorf("recorded %q, %v", b, err)
	}
}

func TestNeedProgram_IsFoundOrMissing(t *testing.T) {
	t.Setenv(serversToUse, "")
	t.Setenv("CI", "true")
	if path := NeedProgram(t, "go", "golang.org"); !filepath.IsAbs(path) {
		t.Errorf("go is at %q", path)
	}
	if did := EndOf(t, func(t testing.TB) { NeedProgram(t, "no-such-program", "nowhere") }); did != "fatal" {
		t.Errorf("with CI=true: %q, want a failure", did)
	}
}

func TestWanted_NoneSkipsAlsoWithCI(t *testing.T) {
	t.Setenv("CI", "true")
	for value, want := range map[string]string{"": "", "none": "skip", "all": "fatal"} {
		t.Setenv(serversToUse, value)
		if did := EndOf(t, Wanted); did != want {
			t.Errorf("%s=%q: %q, want %q", serversToUse, value, did, want)
		}
	}
}
