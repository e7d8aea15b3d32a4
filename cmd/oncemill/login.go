package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/console"
)

// A login is the token of a person, and what they may do besides looking.
type login struct {
	token             string
	operate, payloads bool
}

// logins are those of people, by name.
type logins map[string]login

// Tokens are long, and have many different characters: nobody should be able to guess one.
const (
	leastToken = 20
	leastSigns = 8
)

// readLogins reads a file of logins. Others must not be able to read it.
func readLogins(path string) (logins, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--login: %w", err)
	}
	if others := info.Mode().Perm() & 0o007; others != 0 && runtime.GOOS != "windows" {
		return nil, usagef("--login: %s has the mode %v, so every user of this machine can read its tokens: chmod o= "+
			"%s", path, info.Mode().Perm(), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--login: %w", err)
	}
	return parseLogins(string(text))
}

// parseLogins reads lines NAME:TOKEN or NAME:ROLES:TOKEN. Empty ones and those that begin with "#" are left out.
func parseLogins(text string) (logins, error) {
	all, n := logins{}, 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, ":")
		roles, token, ok := strings.Cut(rest, ":")
		if !ok {
			roles, token = "view", rest
		}
		signs := map[rune]bool{}
		for _, c := range token {
			signs[c] = true
		}
		if name == "" || len(token) < leastToken || len(signs) < leastSigns {
			return nil, usagef("--login: line %d is not NAME:ROLES:TOKEN with a token of %d characters at least, %d "+
				"of them different", n, leastToken, leastSigns)
		}
		if _, twice := all[name]; twice {
			return nil, usagef("--login: line %d has the name %q again", n, name)
		}
		for other, l := range all {
			if l.token == token {
				return nil, usagef("--login: line %d has the token of %q: nobody could tell the two apart", n, other)
			}
		}
		l := login{token: token}
		for role := range strings.SplitSeq(roles, ",") {
			switch role {
			case "view":
			case "operate":
				l.operate = true
			case "payloads":
				l.payloads = true
			default:
				return nil, usagef("--login: line %d has the role %q, want some of view, operate, payloads", n, role)
			}
		}
		all[name] = l
	}
	if len(all) == 0 {
		return nil, usagef("--login names a file without a line NAME:ROLES:TOKEN")
	}
	return all, nil
}

// who returns the name of the user that asks; empty: the user is not known.
func (l logins) who(r *http.Request) (found string) {
	name, token, basic := r.BasicAuth()
	if !basic {
		token, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	got := sha256.Sum256([]byte(token))
	for of, want := range l {
		sum := sha256.Sum256([]byte(want.token))
		if subtle.ConstantTimeCompare(sum[:], got[:]) == 1 && (!basic || name == of) {
			found = of
		}
	}
	return found
}

var (
	errHidden = errors.New("payloads are hidden: they need the role payloads, or --payloads without --login")
	errActs   = errors.New("you may look only: to act needs the role operate, or --write without --login")
)

// may is what a person may do.
func (l login) may(action console.Action) error {
	switch {
	case action == console.Payloads && !l.payloads:
		return errHidden
	case action != console.View && action != console.Payloads && !l.operate:
		return errActs
	}
	return nil
}

// visitorKey is where the context of a request has who asks.
type visitorKey struct{}

// authorize says what a visitor may do: admits has found out who it is.
func (s *consoleServer) authorize(r *http.Request, action console.Action) (string, error) {
	who, _ := r.Context().Value(visitorKey{}).(string)
	l, known := s.people[who]
	if !known {
		l = login{operate: s.write, payloads: s.payloads}
	}
	return who, l.may(action)
}

// admits lets requests of logged-in users through.
func (s *consoleServer) admits(next http.Handler) http.Handler {
	if s.people == nil {
		return next
	}
	var seen attempts
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		who := s.people.who(r)
		if who == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="oncemill", charset="UTF-8"`)
			status := http.StatusUnauthorized
			if r.Header.Get("Authorization") != "" && !seen.failed(r, s.logger, address) {
				status = http.StatusTooManyRequests
			}
			refuse(w, status, "log in with your name and your token")
			return
		}
		if seen.count(who+"\x00"+address) == 1 {
			s.logger.Info("console: logged in", "who", who, "address", address)
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, who)))
	})
}

// refuse answers a request whose body nobody wants, which the server reads nevertheless, but not for long.
func refuse(w http.ResponseWriter, status int, why string) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lookTimeout))
	http.Error(w, why, status)
}

const (
	attemptsFor = time.Hour // how long an address, and a person at one, are remembered
	mostSeen    = 10_000
	mostWaiting = 50 // refusals that wait at once
	longestWait = 2 * time.Second
)

// Attempts count, for an hour, the log-ins of each person and the wrong tokens from each address.
type attempts struct {
	mu      sync.Mutex
	began   time.Time
	seen    map[string]int
	waiting int
}

// count counts a person at an address, or what is wrong at one.
func (a *attempts) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil || time.Since(a.began) > attemptsFor || len(a.seen) > mostSeen {
		a.began, a.seen = time.Now(), map[string]int{}
	}
	a.seen[what]++
	return a.seen[what]
}

// wait reserves a place among those who wait, or gives it back, and reports whether there is one.
func (a *attempts) wait(places int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting += places
	return a.waiting <= mostWaiting
}

// failed logs a wrong token, and waits the longer the more came from an address. It waits with so many at a time only,
// and reports whether it did.
func (a *attempts) failed(r *http.Request, log *slog.Logger, address string) bool {
	n := a.count(address)
	if n <= 10 || n%100 == 0 {
		name, _, _ := r.BasicAuth()
		log.Warn("console: log-in refused", "name", safe(name, 100), "address", address, "times", n)
	}
	defer a.wait(-1)
	if !a.wait(1) {
		return false
	}
	select {
	case <-time.After(min(time.Duration(n)*100*time.Millisecond, longestWait)):
	case <-r.Context().Done():
	}
	return true
}
