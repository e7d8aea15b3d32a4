// Package bank is a client of another company's API, whose effects no transaction can take back, and a stub of that
// API.
package bank

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/oncemill/oncemill"
)

// A Transfer is what the API is asked for.
type Transfer struct {
	Payment string `json:"payment"`
	Cents   int64  `json:"cents"`
}

// A Client asks for transfers. It is safe for concurrent use.
type Client struct {
	url  string
	http http.Client
}

// NewClient returns a client of the API at a URL, for so many calls at once. Close it at the end.
func NewClient(url string, atOnce int) *Client {
	return &Client{url: url, http: http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: atOnce},
		// A redirect is an answer. A client would follow one by GET otherwise, and take a login page for a transfer.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       5 * time.Second,
	}}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Transfer makes a transfer, once for each key: give it one of oncemill.Run.ID. It may call a second time after a crash
// or a lost answer, and beside the first call if its process stood still for longer than the lease. The error says what
// the guard is to do.
func (c *Client) Transfer(ctx context.Context, key string, t Transfer) error {
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/transfers", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := c.http.Do(request)
	if err != nil {
		return oncemill.Uncounted(err) // tried again for as long as the API is away
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if response.StatusCode < http.StatusMultipleChoices {
		return err
	}
	err = fmt.Errorf("the API answers %s", response.Status)
	switch {
	case slices.Contains(passing, response.StatusCode):
		return oncemill.RetryAfter(5*time.Second, oncemill.Uncounted(err))
	case response.StatusCode < http.StatusInternalServerError:
		return oncemill.Permanent(err)
	case response.StatusCode == http.StatusInternalServerError: // it may be this transfer: MaxAttempts bounds that
		return err
	}
	return oncemill.Uncounted(err)
}

// passing are the 4xx that say nothing about the transfer, only about this moment. 409 means that a first call with
// this key still runs there, after a takeover. Its transfer happens, so it must not be stored as a failure here.
var passing = []int{http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests}
