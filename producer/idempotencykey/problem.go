package idempotencykey

import (
	"encoding/json"
	"net/http"
	"time"
)

// A Problem is why the middleware answers a request by itself, as RFC 9457 writes it.
type Problem struct {
	Status int    // of the response
	Code   string // one of the Code constants
	Title  string
	Detail string

	DocsURL string // Config.DocsURL

	// RetryAfter is when a repeat may succeed; the header is set, in whole seconds. Zero: never, or nobody knows.
	RetryAfter time.Duration

	// Original is the status of a response that was sent to another request and is not kept. Zero: none.
	Original int

	// Replayed is the header that says that another request decided the answer; it is set, too. Empty: none did.
	Replayed string
}

// Codes of problems.
const (
	CodeMissing     = "key-missing"      // 400: the request must have a key
	CodeInvalid     = "key-invalid"      // 400: what is there is no key
	CodeUnsupported = "key-unsupported"  // 400: the request must not have a key
	CodeReused      = "key-reused"       // 422: the key was used with another request
	CodeInProgress  = "in-progress"      // 409: another request with the key is being processed
	CodeTooLarge    = "body-too-large"   // 413: Config.MaxRequestBody
	CodeNotKept     = "response-dropped" // 410: the work is done, its response is not kept
	CodeUnknown     = "outcome-unknown"  // 500: the run ended without a response; it may have had an effect
	CodeRefused     = "response-refused" // 500: rolled back, because the response could not be held until the commit, or was not whole
	CodeUncommitted = "not-committed"    // 500: rolled back, because the transaction could not be committed
	CodeUnavailable = "unavailable"      // 503: try again with the same key
	CodeNoAccount   = "account-unknown"  // 403: Config.Account
	CodeInternal    = "misconfigured"    // 500: no route, a body that was read before, or a stored response that cannot be read
)

// Write sends the problem as application/problem+json. It is what Config.WriteProblem is if it is nil.
func (p Problem) Write(w http.ResponseWriter) {
	body, err := json.Marshal(struct {
		Type     string `json:"type"`
		Title    string `json:"title"`
		Status   int    `json:"status"`
		Detail   string `json:"detail,omitempty"`
		Code     string `json:"code"`
		Original int    `json:"original_status,omitempty"`
	}{p.DocsURL + "#" + p.Code, p.Title, p.Status, p.Detail, p.Code, p.Original})
	if err != nil { // there is nothing in it that has no JSON
		body = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Language", "en")
	h.Set("Cache-Control", "no-store")
	h.Set("Link", "<"+p.DocsURL+`>; rel="describedby"; type="text/html"`)
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client has gone
}

// seconds rounds up to whole seconds, at least one: a client that comes too early is sent away again.
func seconds(d time.Duration) int64 { return max(int64((d+time.Second-1)/time.Second), 1) }
