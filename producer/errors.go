package producer

import (
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
)

// ErrNoID says that a message has no ID. An [Extractor] returns it when it finds nothing, and [Extract] when none of
// them does. Nothing can be recorded for such a message: reject it or let it pass, as the policy says.
var ErrNoID = errors.New("producer: message has no ID")

// invalid says what is wrong with a message or an argument. It never holds payload.
func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "producer", Field: field, Problem: problem}
}

func headerField(name string) string { return "header " + name }
