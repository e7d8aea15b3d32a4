package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// logins are the tokens of people, by name.
type logins map[string]string

// leastToken is the length of the shortest token: nobody should be able to guess one.
const leastToken = 16

// parseLogins reads lines NAME:TOKEN. Empty ones and those that begin with "#" are left out.
func parseLogins(text string) (logins, error) {
	all := logins{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, token, ok := strings.Cut(line, ":")
		if !ok || name == "" || len(token) < leastToken {
			return nil, usagef("--login has a line that is not NAME:TOKEN with a token of %d characters at least",
				leastToken)
		}
		all[name] = token
	}
	if len(all) == 0 {
		return nil, usagef("--login names a file without a line NAME:TOKEN")
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
		sum := sha256.Sum256([]byte(want))
		if subtle.ConstantTimeCompare(sum[:], got[:]) == 1 && (!basic || name == of) {
			found = of
		}
	}
	return found
}

// visitorKey is where the context of a request has who asks.
type visitorKey struct{}

// admits lets requests of logged-in users through. Without logins, it lets requests for a name of this machine
// through, and no others: a page of another site could have its own name lead here.
func (s *consoleServer) admits(address string, next http.Handler) http.Handler {
	_, port, _ := net.SplitHostPort(address)
	names := []string{address}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		names = append(names, net.JoinHostPort(host, port))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.people == nil {
			if !slices.Contains(names, r.Host) {
				refuse(w, http.StatusForbidden, "the console serves "+address+" only: use --login behind a proxy")
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		who := s.people.who(r)
		if who == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="oncemill", charset="UTF-8"`)
			refuse(w, http.StatusUnauthorized, "log in with your name and your token")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitorKey{}, who)))
	})
}

// refuse answers a request whose body nobody wants, which the server reads nevertheless, but not for long.
func refuse(w http.ResponseWriter, status int, why string) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(lookTimeout))
	http.Error(w, why, status)
}
