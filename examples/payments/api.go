package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// An api is a stub of another company's API: POST /transfers with an Idempotency-Key transfers once, however often it is
// called, and answers as the first time. It keeps keys in a file, so that it may crash, too. It is safe for concurrent use.
type api struct {
	lose int // every so many answers one is lost after the transfer; 0: none

	mu    sync.Mutex
	file  *os.File
	known map[string]string // what was asked for, by key
	calls int
}

// openAPI reads the file, and makes it if it is missing.
func openAPI(file string, lose int) (*api, error) {
	calls, err := readJournal(file)
	if err != nil {
		return nil, err
	}
	a := &api{lose: lose, known: map[string]string{}, calls: len(calls)}
	for _, c := range calls {
		if c.transfer {
			a.known[c.key] = c.body
		}
	}
	a.file, err = os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return a, err
}

func (a *api) close() error { return a.file.Close() }

// A call is one line of the journal.
type call struct {
	transfer  bool // else it was repeated
	key, body string
}

// readJournal returns all calls, the earliest first.
func readJournal(file string) ([]call, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var calls []call
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		key, body, found := strings.Cut(rest, " ")
		if !found || word != "transfer" && word != "repeated" {
			return nil, fmt.Errorf("%s has the line %q: that is not the journal of the API", file, lines.Text())
		}
		calls = append(calls, call{word == "transfer", key, body})
	}
	return calls, lines.Err()
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	key := r.Header.Get("Idempotency-Key")
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/transfers":
		answer(w, http.StatusNotFound, "POST /transfers")
	case err != nil || strings.ContainsAny(string(body), "\r\n"):
		answer(w, http.StatusBadRequest, "want one line of JSON")
	case !name.MatchString(key):
		answer(w, http.StatusBadRequest, "want an Idempotency-Key")
	default:
		status, says := a.transfer(key, string(body))
		answer(w, status, says)
	}
}

// transfer does what is asked for unless it was done before.
func (a *api) transfer(key, body string) (status int, says string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, known := a.known[key]
	word := "transfer"
	switch {
	case known && before != body:
		return http.StatusUnprocessableEntity, "the key belongs to another transfer"
	case known:
		word = "repeated"
	}
	if _, err := fmt.Fprintf(a.file, "%s %s %s\n", word, key, body); err != nil { // one write: a crash leaves no half line
		return http.StatusInternalServerError, err.Error()
	}
	a.known[key] = body
	a.calls++
	if a.lose > 0 && a.calls%a.lose == 0 {
		return http.StatusGatewayTimeout, "nobody knows whether it was done" // it was
	}
	if known {
		return http.StatusOK, "transferred before"
	}
	return http.StatusCreated, "transferred"
}
