package testserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// A wait for a server that has ended would last for minutes, and say less.
func TestStartWatched_FailsAtOnceWhenTheServerEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	looks := 0
	look := func() error { looks++; return errors.New("nobody answers") }
	_, err := StartWatched(dir, []string{"sh", "-c", "echo no such option"}, time.Hour, look)
	if err == nil || !strings.Contains(err.Error(), "it ended at once") || !strings.Contains(err.Error(), "no such option") {
		t.Errorf("got %v, want that it ended, and what it said", err)
	}
	alive, err := StartWatched(t.TempDir(), []string{"sleep", "3600"}, time.Hour, func() error {
		if looks--; looks > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("a server that lives: %v", err)
	}
	alive.Close()
}
