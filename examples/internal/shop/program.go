// Package shop is what the examples share and your program does not need: a NATS server inside the process, clients
// that lose patience, publishers that forget. It needs no client of a server but NATS, so the first example builds
// soon.
package shop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Main runs an example as a program and returns its exit status: 0 if its books balance, 1 if not or if something
// broke, 2 for wrong flags. The end of ctx, SIGINT and SIGTERM begin the drain. Files in dir are removed at the end.
func Main(ctx context.Context, flags *flag.FlagSet, args []string, stderr io.Writer,
	run func(ctx context.Context, dir string) (balanced bool, err error),
) int {
	flags.SetOutput(stderr)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it is said already
		return 2
	case flags.NArg() > 0:
		Say(stderr, "%s: unexpected argument %q\n", flags.Name(), flags.Arg(0))
		return 2
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // libraries do not log
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	balanced := false
	dir, err := os.MkdirTemp("", "oncemill-"+flags.Name()+"-")
	if err == nil {
		balanced, err = run(ctx, dir)
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		Say(stderr, "%s: %v\n", flags.Name(), err)
	}
	_, wrongFlags := errors.AsType[*FlagError](err)
	switch {
	case wrongFlags:
		return 2
	case err != nil || !balanced:
		return 1
	}
	return 0
}

// A FlagError says what is wrong with the flags.
type FlagError struct{ text string }

// Error implements error.
func (e *FlagError) Error() string { return e.text }

// WrongFlag makes a FlagError.
func WrongFlag(format string, args ...any) error { return &FlagError{fmt.Sprintf(format, args...)} }

// CheckRange returns an error unless a flag's value is within its bounds.
func CheckRange(flagName string, n, least, most int) error {
	if n < least || n > most {
		return WrongFlag("-%s is %d, want %d to %d", flagName, n, least, most)
	}
	return nil
}

// OnlyServers returns an error for each of the named flags that was given although the example runs without servers.
func OnlyServers(flags *flag.FlagSet, embedded bool, names ...string) (err error) {
	for _, name := range names {
		if f := flags.Lookup(name); embedded && f.Value.String() != f.DefValue {
			err = WrongFlag("-%s has no use with -embedded, which needs no servers", name)
		}
	}
	return err
}

// NoServer says that the server at the address in a flag cannot be used. The address is Redacted, or holds no secret.
func NoServer(flagName, address string, err error) error {
	if address == "" { // errors of clients may show what they cannot read
		address = "(hidden, as it may hold a password)"
		err = errors.New("want a URL such as " + flagName + "://127.0.0.1:1234")
	}
	profile := map[string]string{"brokers": "--profile kafka ", "mysql": "--profile mysql "}[flagName]
	return fmt.Errorf("the server at -%s %s cannot be used: %w\n(`docker compose %sup -d --wait` starts one)",
		flagName, address, err, profile)
}

// Redacted is a URL without its secrets, to be shown, or "". NATS takes a token for a user.
func Redacted(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

var saying sync.Mutex

// Say prints to people. That it cannot be printed stops nothing. It is safe for concurrent use.
func Say(w io.Writer, format string, args ...any) {
	saying.Lock()
	defer saying.Unlock()
	_, _ = fmt.Fprintf(w, format, args...)
}

// Table prints what was counted, in lines of a name and a number, and what follows from it.
func Table(w io.Writer, verdict string, lines ...any) error {
	var text strings.Builder
	for i := 0; i+1 < len(lines); i += 2 {
		fmt.Fprintf(&text, "  %-30s %6d\n", lines[i], lines[i+1])
	}
	_, err := fmt.Fprintf(w, "%s\n%s\n", &text, verdict)
	return err
}

// RunName names a new run, as a part of all names at servers: runs keep out of each other's way.
func RunName() string { return "r" + strconv.FormatInt(time.Now().UnixNano(), 36) }

// Poll asks until the answer is yes.
func Poll(ctx context.Context, every time.Duration, ask func() (bool, error)) error {
	for {
		if yes, err := ask(); err != nil || yes {
			return err
		}
		if err := Pause(ctx, every); err != nil {
			return err
		}
	}
}

// Pause waits.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Finish adds the error of end, which gets some time although ctx may have ended.
func Finish(ctx context.Context, err *error, end func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	*err = errors.Join(*err, end(ctx))
}

// Each calls do for 0 to n-1, so many at once, until one call fails.
func Each(ctx context.Context, n, atOnce int, do func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		slots <- struct{}{}
		all.Go(func() {
			if err := do(ctx, i); err != nil {
				stop(err)
			}
			<-slots
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
