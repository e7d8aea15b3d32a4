package producer

import "errors"

// ErrNoID says that a message has no ID. An [Extractor] returns it when there is nothing that it looks for, and
// [Extract] when that is so for all of them. Nothing can be recorded for such a message: reject it or let it pass, as
// the policy says.
var ErrNoID = errors.New("producer: message has no ID")

// InvalidError says what is wrong with a message, its header, its payload or an argument. Repeating the call is
// useless. It never holds payload.
type InvalidError struct {
	Field   string // such as "Message.ID" or "header oncemill-id"
	Problem string // such as "is empty"
}

func (e *InvalidError) Error() string { return "producer: " + e.Field + " " + e.Problem }

func headerField(name string) string { return "header " + name }
