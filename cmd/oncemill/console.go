package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/user"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/consumer/health"
	"github.com/oncemill/oncemill/internal/operate"
)

// A consoleServer is the console as flags.
type consoleServer struct {
	*app
	listen          string
	cert, key       string
	write, payloads bool
	login           string
	metrics, dead   []string
	consumers       []string
	stream          string
	notes, audit    string
	search          string
	rate            int
	flags           *pflag.FlagSet

	people logins
	logger *slog.Logger // of the audit log
}

func (a *app) console() *cobra.Command {
	s := &consoleServer{app: a}
	cmd := &cobra.Command{
		Use:     "console",
		GroupID: "run",
		Short:   "Serve the web console, to look at messages and mend what failed",
		Long: `console serves the web console, to this machine only unless --listen says
otherwise. It shows the store, the outbox and the dead letters that are named.

It is read-only without --write, and hides payloads without --payloads. --login
names a file with a line NAME:ROLES:TOKEN for each person, which the browser
asks for; programs may send the token as a Bearer. Roles are some of view,
operate and payloads, with commas. A token has 20 characters at least, and
other users must not be able to read the file. Without a file, --write makes a
token for you and tells it on standard error; under a service manager, use a
file. Other machines are served only with --login, and should be with TLS.`,
		Example: "  oncemill console --metrics http://127.0.0.1:9464/metrics\n" +
			"  oncemill console --write --dead-letters dead.billing --audit-log audit.jsonl",
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.flags = cmd.Flags()
			return s.serve(cmd.Context())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.listen, "listen", "127.0.0.1:7080", "where it listens")
	flags.BoolVar(&s.write, "write", false, "allow actions: forget, rerun, complete, archive, redrive,\n"+
		"requeue, discard, replay")
	flags.BoolVar(&s.payloads, "payloads", false, "show results, and headers and payloads of dead letters")
	flags.StringVar(&s.login, "login", "", "the file with a line NAME:ROLES:TOKEN for each person")
	flags.StringVar(&s.cert, "tls-cert", "", "serve HTTPS, with the certificate in this file")
	flags.StringVar(&s.key, "tls-key", "", "and the key in this one")
	flags.StringSliceVar(&s.metrics, "metrics", nil, "the metrics of your services, in Prometheus's text format")
	flags.StringSliceVar(&s.dead, "dead-letters", nil, "subjects or topics of dead letters")
	flags.StringVar(&s.stream, "stream", "", "the stream of dead letters, if their subjects do not lead to\nit (NATS)")
	flags.StringSliceVar(&s.consumers, "consumer", nil, "show how far these are behind: STREAM/CONSUMER (NATS)\n"+
		"or GROUP (Kafka)")
	flags.StringVar(&s.search, "trace-search", "", "link to the traces of a message; {id} stands for its ID")
	flags.StringVar(&s.notes, "notes", "", "keep archived failures and actions in this file; else in memory")
	flags.StringVar(&s.audit, "audit-log", "", "append a line for each change to this file; else to stderr")
	flags.IntVar(&s.rate, "rate", 100, "change so many records or rows a second at most")
	return cmd
}

func (s *consoleServer) serve(ctx context.Context) (err error) {
	if s.settings.Store == "" && s.settings.Outbox == "" && len(s.dead) == 0 {
		return usagef("nothing is named: set --store, --outbox or --dead-letters, or see oncemill console --help")
	}
	host, _, err := net.SplitHostPort(s.listen)
	if err != nil {
		return usagef("--listen: %w", err)
	}
	if s.rate < 1 {
		return usagef("--rate is %d, want at least 1", s.rate)
	}
	if !loopback(host) && s.login == "" {
		return usagef("--listen is %s, which other machines reach: it needs --login", s.listen)
	}
	if (s.cert == "") != (s.key == "") {
		return usagef("--tls-cert and --tls-key need each other")
	}
	if err := s.findPeople(); err != nil {
		return err
	}
	logTo, done, err := s.auditLog(s.audit)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	s.logger = slog.New(slog.NewJSONHandler(logTo, nil))
	config, err := s.config(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, config.Notes.Close()) }()
	c, err := console.New(config)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	scheme := "https"
	if s.cert == "" {
		scheme = "http"
		if !loopback(host) {
			fmt.Fprintln(s.log, "Tokens go over the network in clear: set --tls-cert and --tls-key, or put TLS "+
				"before it.")
		}
	}
	fmt.Fprintf(s.log, "The console is at %s://%s/\n", scheme, l.Addr())
	if s.write {
		for name, l := range s.people {
			fmt.Fprintf(s.log, "Log in as %s with the token %s\n", name, l.token)
		}
	}
	return s.run(ctx, c, l)
}

// run serves until the context ends, or the server cannot any more.
func (s *consoleServer) run(ctx context.Context, c *console.Console, l net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := &http.Server{
		Handler: s.admits(c.Handler()), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var err error
		if s.cert == "" {
			err = server.Serve(l)
		} else {
			err = server.ServeTLS(l, s.cert, s.key)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			stop(err)
		}
	}()
	_ = c.Run(ctx) // it ends with the context, and all streams with it
	cause := context.Cause(ctx)
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(within); err != nil {
		_ = server.Close()
	}
	<-ended
	if errors.Is(cause, context.Canceled) {
		return nil // that is how it ends
	}
	return cause
}

// alone is the same app without what is open: what it opens, it closes.
func (a *app) alone() *app {
	return &app{settings: a.settings, in: strings.NewReader(""), out: io.Discard, log: io.Discard}
}

func (s *consoleServer) config(ctx context.Context) (config console.Config, err error) {
	config = console.Config{
		Trace: s.settings.Trace, TraceSearch: s.search, Rate: s.rate, Logger: s.logger, Authorize: s.authorize,
		Notes: &console.Notes{},
	}
	if s.people != nil { // a page of another site has no login to send
		config.Hosts = []string{"*"}
	}
	if s.settings.Store != "" {
		store, err := s.openStore(ctx) // pages say if it does not answer
		if err != nil {
			return config, err
		}
		config.Stores = []console.Store{{Name: "records", Inspector: store}}
	}
	if s.settings.Outbox != "" {
		opened, err := s.reachBox(ctx, false) // its pages have deadlines of their own
		if err != nil {
			return config, err
		}
		config.Outboxes = []console.Outbox{{Name: "outbox", Inspector: opened}}
	}
	if len(config.Stores)+len(config.Outboxes) > 0 {
		config.Findings = s.findings
	}
	if s.audit != "" {
		config.Log = s.lastChanges
	}
	if len(s.metrics) > 0 {
		config.Counters = console.Prometheus(nil, s.metrics...)
	}
	for _, topic := range s.dead {
		// A server that is away now is no reason not to start: pages say so, and it may come back.
		source, err := s.open(s.flags, &dlq{stream: s.stream}, topic, nats.RetryOnFailedConnect(true))
		if err != nil {
			return config, err
		}
		config.DeadLetters = append(config.DeadLetters, console.DeadLetterTopic{Name: topic, Source: source})
	}
	if len(s.consumers) > 0 {
		if config.Lag, err = s.lagOf(s.flags, s.consumers, nats.RetryOnFailedConnect(true)); err != nil {
			return config, err
		}
	}
	if s.notes != "" {
		config.Notes, err = console.OpenNotes(s.notes)
	}
	return config, err
}

// lastChanges are those of the audit log, of this and earlier processes.
func (s *consoleServer) lastChanges(context.Context) (all []console.Entry, err error) {
	f, err := os.Open(s.audit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const tail = 1 << 20
	if info, err := f.Stat(); err == nil && info.Size() > tail {
		_, _ = f.Seek(-tail, io.SeekEnd) // the first line is cut then, and counts as none
	}
	_, err = operate.ReadLog(f, func(e console.Entry) { all = append(all, e) })
	return all, err
}

// findings are what only the doctor finds of the servers of the store and the outbox.
func (s *consoleServer) findings(ctx context.Context) (all []health.Finding, err error) {
	d := &doctor{app: s.alone(), deeper: true}
	defer d.close()
	if d.policy, _, err = health.Defaults(d.policy); err == nil {
		err = d.look(ctx)
	}
	return d.Found, err
}

// auditLog opens the audit log for lines to be added; without a path it is what else is told.
func (a *app) auditLog(path string) (to io.Writer, done func() error, err error) {
	if path == "" {
		return a.log, func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("audit log: %w", err)
	}
	audit := &auditFile{File: f, rest: a.log}
	return audit, audit.close, nil
}

// An auditFile keeps no change from being told: what it cannot write is told elsewhere.
type auditFile struct {
	*os.File
	rest io.Writer

	mu   sync.Mutex
	torn bool  // the last line is not whole
	err  error // the first
}

func (f *auditFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	whole := line
	if f.torn {
		whole = append([]byte{'\n'}, line...)
	}
	n, err := f.File.Write(whole)
	if err == nil {
		f.torn = false
		return len(line), nil
	}
	f.torn = f.torn || n > 0
	if f.err == nil {
		f.err = fmt.Errorf("audit log: %w: its lines were told on standard error", err)
		fmt.Fprintln(f.rest, "oncemill:", f.err)
	}
	return f.rest.Write(line)
}

func (f *auditFile) close() error { return errors.Join(f.err, f.File.Close()) }

// loopback reports whether only this machine reaches a host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// me is the user that runs the command.
func me() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// findPeople finds out who may log in, or makes a token if somebody may write.
func (s *consoleServer) findPeople() (err error) {
	switch {
	case s.login != "" && (s.write || s.payloads):
		return usagef("--write and --payloads are for everybody who comes: with --login, its roles say who may do what")
	case s.login != "":
		s.people, err = readLogins(s.login)
	case s.write:
		s.people = logins{me(): {token: rand.Text(), operate: true, payloads: s.payloads}}
	}
	return err
}
