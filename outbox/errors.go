package outbox

import "fmt"

// InvalidError says which argument or field of a config is wrong. Nothing was done; repeating the call is useless.
type InvalidError struct {
	Field   string // such as "Config.Lease"
	Problem string // such as "is nil"
}

func (e *InvalidError) Error() string { return "outbox: " + e.Field + " " + e.Problem }

// ConflictError says that the outbox holds a message with this ID for this topic, but with other content: one of the
// two would never be published. Either the ID is used for two different things, or the content changes when the action
// is repeated. Roll back.
type ConflictError struct{ ID, Topic string }

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: message ID %q for topic %q is in the outbox with other content", e.ID, e.Topic)
}

// OtherContent says that the ID is known with other content, to those who do not know this package.
func (*ConflictError) OtherContent() bool { return true }
