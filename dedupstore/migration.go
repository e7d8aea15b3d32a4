package dedupstore

// A Migration is what the Migrate of a store or an outbox would do now.
type Migration struct {
	Found  int    // version of the schema that is there; 0: there is none
	Wanted int    // version that Migrate makes
	SQL    string // the statements that it needs; empty: none, for Found is not below Wanted
}
