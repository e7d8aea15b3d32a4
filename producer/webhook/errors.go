package webhook

// SignatureError says why a request is not proven to be the sender's. It never holds a signature or a key. The sender gets
// the text, with status 401.
type SignatureError struct{ Problem string }

func (e *SignatureError) Error() string { return "webhook: " + e.Problem }

// EventError says why a proven request is of no use. The sender gets the text, with status 400.
type EventError struct{ Problem string }

func (e *EventError) Error() string { return "webhook: " + e.Problem }

// InvalidError says what is wrong with a config, a key or another argument. It never holds a key.
type InvalidError struct {
	Field   string // such as "Config.Sender"
	Problem string // such as "is empty"
}

func (e *InvalidError) Error() string { return "webhook: " + e.Field + " " + e.Problem }

// publishError is an error of the publisher: the event may come again, as often as the sender likes. An outage must not use up
// its attempts.
type publishError struct{ err error }

func (e *publishError) Error() string { return "publish the event: " + e.err.Error() }

// Unwrap lets a store see that the transaction is to be repeated.
func (e *publishError) Unwrap() error { return e.err }

// Uncounted says that the attempt does not count.
func (e *publishError) Uncounted() bool { return true }
