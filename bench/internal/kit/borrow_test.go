package kit

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

func TestBorrow_CleansUpAsATestDoes(t *testing.T) {
	t.Parallel()
	var order, dir string
	giveBack, err := Borrow(func(t testing.TB) {
		dir = t.TempDir()
		t.Cleanup(func() { order += "1" })
		t.Cleanup(func() { order += "2" })
	})
	if err != nil || order != "" {
		t.Fatalf("cleaned up %q, %v", order, err)
	}
	if err := giveBack(); err != nil || order != "21" {
		t.Errorf("cleaned up %q, %v", order, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}

func TestBorrow_TellsWhatIsMissingFromWhatFails(t *testing.T) {
	t.Parallel()
	for name, get := range map[string]func(testing.TB){
		"missing": func(t testing.TB) { t.Skip("there is no Java") },
		"fails":   func(t testing.TB) { t.Fatalf("port %d is taken", 1) },
	} {
		cleaned := false
		_, err := Borrow(func(t testing.TB) {
			t.Cleanup(func() { cleaned = true })
			get(t)
		})
		if err == nil || errors.Is(err, ErrMissing) != (name == "missing") || !cleaned {
			t.Errorf("%s: %v, cleaned up: %t", name, err, cleaned)
		}
	}
}

func TestServersCPU_CountsProcessesOfProcesses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it is known on Linux only")
	}
	before, err := ServersCPU()
	if err != nil {
		t.Fatal(err)
	}
	// The inner shell ends when its standard input does, which is when the test closes it.
	busy := exec.CommandContext(t.Context(), "sh", "-c", `sh -c 'while read -r _; do :; done'; :`)
	lines, err := busy.StdinPipe()
	if err == nil {
		err = busy.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Wait()
	defer lines.Close()
	for limit := time.Now().Add(10 * time.Second); ; {
		if _, err := lines.Write(bytes.Repeat([]byte{'\n'}, 4096)); err != nil {
			t.Fatal(err)
		}
		used, err := ServersCPU()
		if err != nil {
			t.Fatal(err)
		}
		if used > before+50*time.Millisecond {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("servers used %v, and %v later", before, used)
		}
	}
}
