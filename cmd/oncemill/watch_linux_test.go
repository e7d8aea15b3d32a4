package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A screen is a terminal that remembers what was written to it.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// openTerminal returns the end of a terminal that a program writes to.
func openTerminal(t *testing.T) (*os.File, *screen) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	var number, unlocked uint32
	for request, value := range map[uintptr]*uint32{syscall.TIOCGPTN: &number, syscall.TIOCSPTLCK: &unlocked} {
		_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), request, uintptr(unsafe.Pointer(value)))
		if failed != 0 {
			t.Fatal(failed)
		}
	}
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{}
	go func() { // ends when master is closed
		part := make([]byte, 4096)
		for {
			n, err := master.Read(part)
			s.mu.Lock()
			s.text.Write(part[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return slave, s
}

func TestStats_LeavesTheTerminalCleanWhenTheServerDies(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*redistest.Server, *os.Process) error{
		"the server dies": func(server *redistest.Server, _ *os.Process) error {
			server.Kill()
			return nil
		},
		"an interrupt": func(_ *redistest.Server, p *os.Process) error { return p.Signal(os.Interrupt) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			terminal, shown := openTerminal(t)
			watching := exec.CommandContext(t.Context(), "oncemill", "stats", "--watch", "--every", "1s", "--store",
				"redis://"+server.Addr)
			watching.Stdout, watching.Stderr = terminal, terminal
			if err := watching.Start(); err != nil {
				t.Fatal(err)
			}
			terminal.Close()
			soon(t, func() error {
				if strings.Count(shown.String(), "SCOPE") < 2 {
					return errors.New("nothing is shown again")
				}
				return nil
			})
			if err := ends(server, watching.Process); err != nil {
				t.Fatal(err)
			}
			err := watching.Wait()
			want, status := `^oncemill: redisstore: count: .*connection refused$`, exitError
			if name == "an interrupt" {
				want, status = `^SCOPE .*DUPLICATES$`, 0
			}
			if got := watching.ProcessState.ExitCode(); got != status {
				t.Errorf("status %d, want %d: %v", got, status, err)
			}
			soon(t, func() error { // the last lines are on their way
				last := shown.String()
				last = last[strings.LastIndex(last, "\x1b[2J")+len("\x1b[2J"):]
				lines := strings.Split(strings.TrimSuffix(strings.ReplaceAll(last, "\r\n", "\n"), "\n"), "\n")
				if end := lines[len(lines)-1]; !regexp.MustCompile(want).MatchString(end) || len(lines) > 2 {
					return fmt.Errorf("the screen ends with %q, want %q", lines, want)
				}
				return nil
			})
			if text := shown.String(); strings.Contains(text, "\x1b[?") || !strings.HasSuffix(text, "\n") {
				t.Errorf("the terminal is left at %q", text[max(0, len(text)-100):])
			}
		})
	}
}
