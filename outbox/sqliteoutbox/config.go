package sqliteoutbox

// Config configures an Outbox. The zero value is ready to use.
type Config struct {
	// Table is the name of the table, and the beginning of the names of its indexes. At most 48 ASCII letters, digits
	// and underscores; it does not begin with a digit. Empty: "oncemill_outbox".
	Table string
}
