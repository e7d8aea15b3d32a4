package sqliteoutbox

// Config configures an Outbox. The zero value is ready to use.
type Config struct {
	// Table is the name of the table; the names of its indexes begin with it. At most 48 ASCII letters, digits and
	// underscores, not beginning with a digit. Empty: "oncemill_outbox".
	Table string
}
