package webhook

import (
	"net/http"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A Verifier proves that a request comes from a sender, and finds the event in it. It is safe for concurrent use.
//
// Verify gets the body as it came in, and does not change it. It returns a *SignatureError for what is not proven
// (answered with 401), an *EventError for what is proven and of no use (400), and any other error if it cannot tell (503).
// It does not look at the clock: it returns the time that was signed.
type Verifier interface {
	Verify(header http.Header, body []byte) (Event, error)
}

// An Event is what a proven request says.
type Event struct {
	// ID is the sender's name for the event, which stays through retries and redeliveries. Empty only with a Reply.
	ID string

	// Sent is when the request was signed. Zero: the scheme does not sign a time, and requests never grow old.
	Sent time.Time

	// Headers are the names of request headers that the event cannot be understood without. They go on with the message.
	Headers []string

	// Fingerprint identifies the content. Zero: the SHA-256 of the whole body.
	Fingerprint dedupstore.Fingerprint

	// Reply is answered as plain text with status 200, and nothing is published: a question of the sender's. Nil: none.
	Reply []byte
}
