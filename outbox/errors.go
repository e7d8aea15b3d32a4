package outbox

import (
	"fmt"

	"github.com/oncemill/oncemill/dedupstore"
)

// ConflictError says that the outbox holds a message with this ID and topic, but with other content. One of the two
// would never be published. Either two things share the ID, or the content changes when the action is repeated. Roll
// back.
type ConflictError struct{ ID, Topic string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: message ID %q for topic %q is in the outbox with other content", e.ID, e.Topic)
}

// OtherContent says so to packages that do not import this one.
func (*ConflictError) OtherContent() bool { return true }

func invalid(field, problem string) error {
	return &dedupstore.InvalidError{Package: "outbox", Field: field, Problem: problem}
}
