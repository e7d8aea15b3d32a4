package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A process is a part of the example in a process of its own.
type process struct {
	roles []string
	cmd   *exec.Cmd
	stdin io.Closer // closed: it drains
	says  *tail
	ready chan struct{} // closed when it works
	where string        // it listens here, once it works
	ended chan struct{} // closed when it has ended
	err   error         // why, then
}

// start starts a process of this program. It does not wait until that works.
func start(o options, roles ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{roles: roles, says: &tail{}, ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), self, o.arguments(roles...)...) // it ends when it is told to
	p.cmd.Env = append(os.Environ(), asChild+"=1")
	p.cmd.Stderr = p.says
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.watch(stdout)
	return p, nil
}

// watch reads what the process says until it has ended.
func (p *process) watch(stdout io.Reader) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if where, found := strings.CutPrefix(lines.Text(), "ready "); found {
			p.where = where
			close(p.ready)
			break
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
	p.err = p.cmd.Wait()
	close(p.ended)
}

// opening is how long a process may take until it works.
const opening = time.Minute

// await waits until the process works.
func (p *process) await(ctx context.Context) error {
	limit := time.NewTimer(opening)
	defer limit.Stop()
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return p.broke()
	case <-limit.C:
		return fmt.Errorf("the process %v did not work within %v\n%s", p.roles, opening, p.says)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// broke describes a process that has ended by itself.
func (p *process) broke() error {
	why := p.err
	if why == nil {
		why = errors.New("exit status 0")
	}
	return fmt.Errorf("the process %v has ended, and nobody asked it to: %w\n%s", p.roles, why, p.says)
}

// kill ends the process at once (SIGKILL), and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
}

// drainTime is how long a process may take to end well.
const drainTime = 30 * time.Second

// stop lets the process drain. It must end well.
func (p *process) stop() error {
	_ = p.stdin.Close() // fails only if it has ended
	limit := time.NewTimer(drainTime)
	defer limit.Stop()
	select {
	case <-p.ended:
	case <-limit.C:
		p.kill()
		return fmt.Errorf("the process %v did not drain within %v\n%s", p.roles, drainTime, p.says)
	}
	if p.err != nil {
		return fmt.Errorf("the process %v did not end well: %w\n%s", p.roles, p.err, p.says)
	}
	return nil
}

// A tail keeps the last of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-8<<10):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
