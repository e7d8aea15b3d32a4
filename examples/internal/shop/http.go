package shop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/examples/internal/parts"
)

// Serve takes requests and publishes what they write into an outbox, until ctx ends or one of the two breaks. It stops
// in the order in which work flows. First the server finishes the requests that it has, then the relay finishes the
// batch that it has. Committed rows that are not published by then wait in the outbox for the next relay, of any
// process.
func Serve(ctx context.Context, l net.Listener, h http.Handler, relay func(context.Context) error) error {
	p := parts.New(ctx)
	p.Start("relay", relay)
	p.Start("http", parts.HTTP(l, h))
	<-p.Done()
	return p.Stop()
}

// MaxBody is how long a request may be.
const MaxBody = 64 << 10

// A Refusal says that asking again is useless, and the HTTP status that tells clients so.
type Refusal struct { //nolint:errname // an answer
	Status int
	Text   string
}

// Error implements error.
func (r Refusal) Error() string { return r.Text }

// Taking answers requests whose bodies are placed: clients repeat them until there is an answer below 500. place
// reports false for what is there already. After an error that is no Refusal, the client has to ask again.
func Taking(pattern string, place func(ctx context.Context, body []byte) (placed bool, err error)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
		if err != nil {
			Answer(w, http.StatusBadRequest, err.Error())
			return
		}
		placed, err := place(r.Context(), body)
		refusal, refused := errors.AsType[Refusal](err)
		switch {
		case refused:
			Answer(w, refusal.Status, refusal.Text)
		case err != nil:
			slog.WarnContext(r.Context(), "request was not taken", "error", err)
			w.Header().Set("Retry-After", "1")
			Answer(w, http.StatusServiceUnavailable, "try again")
		case placed:
			Answer(w, http.StatusCreated, "taken")
		default:
			Answer(w, http.StatusOK, "taken before")
		}
	})
	return mux
}

// Answer writes a small JSON object. A client that is gone asks again.
func Answer(w http.ResponseWriter, status int, says string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"says": says})
}

const (
	recall   = 30 * time.Millisecond // how long clients wait before they ask again
	insists  = 2 * time.Minute       // how long a client asks before it gives up
	answerIn = 10 * time.Second      // how long an answer may take
)

// A Client posts requests, each until it has an answer. It is safe for concurrent use.
type Client struct {
	url      string
	http     http.Client
	Requests atomic.Int64
}

// NewClient returns a client of a service. Close it at the end.
func NewClient(url string) *Client {
	return &Client{url: url, http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: answerIn}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Insist posts a request until there is an answer below 500.
func (c *Client) Insist(ctx context.Context, body []byte) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, insists)
	defer cancel()
	late := Poll(ctx, recall, func() (bool, error) {
		if status, err = c.Post(ctx, body); err == nil && status >= http.StatusInternalServerError {
			err = fmt.Errorf("the service answers %d", status)
		}
		return err == nil, nil
	})
	return status, errors.Join(err, late)
}

// Post posts a request once.
func (c *Client) Post(ctx context.Context, body []byte) (status int, err error) {
	c.Requests.Add(1)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, err
	}
	return response.StatusCode, nil
}
