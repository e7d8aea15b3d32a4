package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A Process is a server that was started. Its output goes to the file "log" of its directory.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has been waited for
	log   string
}

// StartProgram runs a program with its output in the file "log" of dir, which later runs in the same directory add to.
// On Linux it dies with this process. The caller ends it.
func StartProgram(dir, program string, args ...string) (*Process, error) {
	p := &Process{log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	dieWithParent(p.cmd)
	started := make(chan error)
	go func() {
		// A parent-death signal is sent when the thread that forked ends: it is kept for the life of the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
			close(p.ended)
		}
	}()
	return p, <-started
}

// StartServer runs a server as [StartProgram] does, and waits until look, which asks the server something, succeeds.
func StartServer(dir string, command []string, limit time.Duration, look func() error) (*Process, error) {
	p, err := StartProgram(dir, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	if err := await(p.hasEnded, limit, look); err != nil {
		p.Kill()
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, p.Output())
	}
	return p, nil
}

// await looks until it succeeds. It fails if the server has ended: then another one, which took the port before, has
// answered.
func await(ended func() bool, limit time.Duration, look func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := look()
		if ended() {
			return errors.New("it ended at once")
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		Pause()
	}
}

func (p *Process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Pid is the process ID.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error { return p.signal(syscall.SIGKILL, WaitLimit) }

// Stop asks the process to end with SIGTERM, waits for its end, and kills it if it takes longer than [WaitLimit].
func (p *Process) Stop() error {
	if err := p.signal(syscall.SIGTERM, WaitLimit); err != nil {
		return p.Kill()
	}
	return nil
}

// Pause stops the process with SIGSTOP: its connections stay open, and nothing is answered until Resume.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// ExitCode is the exit status of a process that has ended; -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

func (p *Process) signal(sig os.Signal, atMost time.Duration) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return errors.New("testserver: the process did not end")
	}
}

// Output returns the end of what the process wrote, for error messages.
func (p *Process) Output() string { return endOf(p.log) }

func endOf(log string) string {
	b, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}
