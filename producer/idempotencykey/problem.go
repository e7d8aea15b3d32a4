package idempotencykey

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// A Problem is an answer of the middleware instead of the handler, in the form of RFC 9457.
type Problem struct {
	Status int    // of the response
	Code   string // one of the Code constants
	Title  string
	Detail string

	// DocsURL is the page that describes the use of keys. With the code as fragment, it is the problem's type; Write
	// also links to it. It is Oncemill's page, unless Config.WriteProblem sets it to your API's.
	DocsURL string

	// RetryAfter is when a repeat may succeed. It sets the header, in whole seconds. Zero: never, or nobody knows.
	RetryAfter time.Duration

	// Original is the status of a response that another request got and that was not stored. Zero: none.
	Original int

	// Replayed says that another request decided the answer. It sets the header Idempotent-Replayed.
	Replayed bool
}

// Codes of problems.
const (
	CodeMissing     = "key-missing"      // 400: the request must have a key
	CodeInvalid     = "key-invalid"      // 400: what is there is no key
	CodeReused      = "key-reused"       // 422: the key was used with another request
	CodeInProgress  = "in-progress"      // 409: another request with the key is being processed
	CodeTooLarge    = "body-too-large"   // 413: Config.MaxRequestBody
	CodeNotKept     = "response-dropped" // 410: the work is done, its response is not kept
	CodeUnknown     = "outcome-unknown"  // 500: the run ended without a response; it may have had an effect
	CodeFailed      = "failed"           // 500: the handler returned an error; with Retry-After, try again
	CodeRefused     = "response-refused" // 500: rolled back: the response was too large to be held, or not whole
	CodeUncommitted = "not-committed"    // 500: rolled back, because the transaction could not be committed
	CodeUnavailable = "unavailable"      // 503: try again with the same key
	CodeNoAccount   = "account-unknown"  // 403: Config.Account
	CodeInternal    = "misconfigured"    // 500: no route, a body that was read before, or a failure that is no response
)

var problems = map[string]Problem{
	CodeMissing: {Status: http.StatusBadRequest, Title: keyHeader + " is missing",
		Detail: "This operation needs a key: new for each new request, the same for each repeat of it."},
	CodeInvalid: {Status: http.StatusBadRequest, Title: "The request or its idempotency key is invalid"},
	CodeReused: {Status: http.StatusUnprocessableEntity, Title: "The key was used with another request",
		Detail: "Method, route, path, query and body of a repeat must be the same. Use a new key for a new request."},
	CodeInProgress: {Status: http.StatusConflict, Title: "A request with this key is in progress",
		Detail: "Send this one again later with the same key, to get the response of the other one."},
	CodeTooLarge: {Status: http.StatusRequestEntityTooLarge, Title: "The request is too large"},
	CodeNotKept: {Status: http.StatusGone, Title: "The response is not available any more", Replayed: true,
		Detail: "The request was processed, once, and its response was sent. It could not be kept for repeats. " +
			"Do not send the request again with another key."},
	CodeUnknown: {Status: http.StatusInternalServerError, Title: "The outcome is not known",
		Detail: "The request was begun, and did not end with a response. It may have had an effect, " +
			"and will not be tried again under this key."},
	CodeFailed: {Status: http.StatusInternalServerError, Title: "The request failed",
		Detail: "If there is a Retry-After, send the request again then with the same key."},
	CodeRefused: {Status: http.StatusInternalServerError, Title: "The response cannot be kept"},
	CodeUncommitted: {Status: http.StatusInternalServerError, Title: "The transaction could not be committed",
		Detail: "Nothing was committed. If there is a Retry-After, send the request again then with the same key."},
	CodeUnavailable: {Status: http.StatusServiceUnavailable, Title: "The request could not be processed now",
		Detail: "Send it again later with the same key."},
	CodeNoAccount: {Status: http.StatusForbidden, Title: "The account is not known",
		Detail: "Keys belong to accounts, and none was found for this request."},
	CodeInternal: {Status: http.StatusInternalServerError, Title: "The server cannot process idempotency keys here"},
}

// newProblem returns the problem with a code, with another detail if there is one.
func newProblem(code, detail string) *Problem {
	p := problems[code]
	p.Code, p.DocsURL = code, "https://github.com/oncemill/oncemill/blob/main/docs/http.md"
	if detail != "" {
		p.Detail = detail
	}
	return &p
}

// after says when to send the request again: in a second at least.
func (p *Problem) after(wait time.Duration) *Problem {
	p.RetryAfter = max(wait, time.Second)
	return p
}

// Write sends the problem as application/problem+json. It is the default of Config.WriteProblem.
func (p Problem) Write(w http.ResponseWriter) {
	body, _ := json.Marshal(struct { // it cannot fail for strings and numbers
		Type     string `json:"type"`
		Title    string `json:"title"`
		Status   int    `json:"status"`
		Detail   string `json:"detail,omitempty"`
		Code     string `json:"code"`
		Original int    `json:"original_status,omitempty"`
	}{p.DocsURL + "#" + p.Code, p.Title, p.Status, p.Detail, p.Code, p.Original})
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Language", "en")
	h.Set("Cache-Control", "no-store")
	h.Set("Link", "<"+p.DocsURL+`>; rel="describedby"; type="text/html"`)
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client has gone
}

// seconds is a time as Retry-After has it, rounded up: a client that comes too early is sent away again.
func seconds(wait time.Duration) string {
	return strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)
}

// refuse answers a request with a problem.
func (m *Middleware) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", seconds(p.RetryAfter))
	}
	if p.Replayed {
		w.Header().Set(replayedHeader, "true")
	}
	m.config.WriteProblem(w, r, *p)
}
