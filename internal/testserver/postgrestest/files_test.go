package postgrestest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

func TestPostgres_KilledServerLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	var left memory
	t.Run("server", func(t *testing.T) {
		s := Start(t, "log_connections=off")
		left = memoryOf(t, s.files)
		s.Kill()
	})
	left.mustGo(t) // with the last of the server's processes
}

func TestSharedPostgres_LeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	files := needPostgres(t, nil)
	alive, err := files.share()
	if err != nil {
		t.Fatal(err)
	}
	left := memoryOf(t, files)
	alive.Close() // as the end of the process does
	left.mustGo(t)
}

// memory is what a server that was killed could leave outside of its folder, and the folder.
type memory struct{ segment, dir string }

func (m memory) mustGo(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	if err := testserver.Until(ctx, m.gone); err != nil {
		t.Error(err)
	}
}

func memoryOf(t *testing.T, f postgresFiles) memory {
	t.Helper()
	pidFile, err := os.ReadFile(filepath.Join(f.data(), "postmaster.pid"))
	lines := strings.Split(string(pidFile), "\n")
	if err != nil || len(lines) < 7 {
		t.Fatalf("postmaster.pid: %q, %v", pidFile, err)
	}
	fields := strings.Fields(lines[6])
	m := memory{segment: fields[len(fields)-1], dir: f.dir}
	if m.gone() == nil {
		t.Fatalf("the running server has no segment %s", m.segment)
	}
	return m
}

func (m memory) gone() error {
	segments, err := exec.Command("ipcs", "-m").Output()
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(segments)) {
		if columns := strings.Fields(line); len(columns) > 1 && columns[1] == m.segment {
			return fmt.Errorf("the segment %s is still there", m.segment)
		}
	}
	if exists(m.dir) {
		return fmt.Errorf("the folder %s is still there", m.dir)
	}
	return nil
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

func TestStart_SkipsWhereNoServerIsWanted(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_SERVERS", "none")
	for i, ask := range []func(testing.TB){
		func(t testing.TB) { Start(t) },
		func(t testing.TB) { Start(t, "fsync=on") },
		func(t testing.TB) { Shared(t) },
		func(t testing.TB) { PgBouncerPool(t, "postgres://127.0.0.1:1/none") },
	} {
		if did := testserver.EndOf(t, ask); did != "skip" {
			t.Errorf("%d: %q, want a skip", i, did)
		}
	}
}
