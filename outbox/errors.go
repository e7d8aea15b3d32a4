package outbox

import (
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
)

// ConflictError says that the outbox holds a message with this ID for this topic, but with other content: one of the
// two would never be published. Either the ID is used for two different things, or the content changes when the action
// is repeated. Roll back.
type ConflictError struct{ ID, Topic string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: message ID %q for topic %q is in the outbox with other content", e.ID, e.Topic)
}

// OtherContent says that the ID is known with other content, to those who do not know this package.
func (*ConflictError) OtherContent() bool { return true }

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "outbox", Field: field, Problem: problem}
}
