package pgstore

import (
	_ "embed"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/oncemill/oncemill/dedupstore"
)

var (
	//go:embed schema.sql
	schemaSQL string

	//go:embed fresh.sql
	freshSQL string

	//go:embed fresh_many.sql
	freshManySQL string

	//go:embed first.sql
	firstSQL string
	//go:embed first_many.sql
	firstManySQL string

	//go:embed finish.sql
	finishSQL string

	//go:embed settle.sql
	settleSQL string

	//go:embed extend.sql
	extendSQL string

	//go:embed clean.sql
	cleanSQL string
)

// Settings come before the statements of the store's own transactions, and end with them.
const (
	// useIndexes switches sequential scans off: a plan that is made while the table is small would stay when it is
	// large.
	useIndexes = `SELECT set_config('enable_seqscan', 'off', true)`
	beHasty    = `, set_config('synchronous_commit', 'off', true)`
	beSafe     = `,
	CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END`

	// beBrief ends the session of a process that has locked records and falls silent: its host may have vanished.
	beBrief = `, set_config('idle_in_transaction_session_timeout', '5s', true)`

	// How long claims wait for others that are inserting the same keys. A commit is quicker than that, unless its
	// client is cut off between two statements of a batch. After a batch has waited in vain, each of its claims goes
	// alone.
	waitTogether = `, set_config('lock_timeout', '200ms', true)`
	waitAlone    = `, set_config('lock_timeout', '30ms', true)`

	// waitForSettling is how long a change waits for a transaction that settles, which has the lock until its end.
	waitForSettling = `, set_config('lock_timeout', '1s', true)`
)

// durability is whether a commit waits for the disk.
func durability(relaxed bool) string {
	if relaxed {
		return beHasty
	}
	return beSafe
}

// statements are the SQL of one store.
type statements struct {
	schema, present, stay, version, keep string
	fresh, freshMany, first, firstMany   string
	load, lock, save, settle, extend     string
	open, finish, join, bar              string
	look, firsts, list, sizes, count     string
	countDuplicates, wait, forget, note  string
	pick, clean, oldFunctions            string
	noteScopes, scopes, keepsScopes      string
}

func statementsFor(cfg Config) statements {
	names := namesOf(cfg)
	in := names.Replace
	finish := uncommented(finishSQL)
	return statements{
		schema: in(schemaSQL), present: in(presentSQL), stay: in(staySQL), version: in(versionSQL), keep: in(keepSQL),
		fresh: in(uncommented(freshSQL)), freshMany: in(uncommented(freshManySQL)),
		load: in(loadSQL), lock: in(lockSQL), save: in(saveSQL),
		settle: in(uncommented(settleSQL)), extend: in(uncommented(extendSQL)),
		first: in(uncommented(firstSQL)), firstMany: in(uncommented(firstManySQL)),
		open: opening(cfg.Isolation), bar: in(barSQL),
		finish: in(strings.NewReplacer("{took}", "$16::bigint", "{verdict}", "1 / count(*)").Replace(finish)),
		join:   in(strings.NewReplacer("{took}", joinTook, "{verdict}", joinVerdict).Replace(finish)),
		look:   in(lookSQL), firsts: in(firstsSQL), list: in(listSQL), sizes: in(sizesSQL), count: in(countSQL),
		countDuplicates: in(countDuplicatesSQL), wait: in(waitSQL), forget: in(forgetSQL), note: in(noteSQL),
		pick: in(pickSQL), clean: in(uncommented(cleanSQL)), oldFunctions: in(oldFunctions),
		noteScopes: in(noteScopesSQL), scopes: in(scopesSQL), keepsScopes: in(keepsScopesSQL),
	}
}

// opening begins a transaction of an inbox.
func opening(isolation pgx.TxIsoLevel) string {
	if isolation != "" {
		isolation = " ISOLATION LEVEL " + isolation
	}
	return "BEGIN" + string(isolation) + " READ WRITE"
}

// uncommented is a statement as the server gets it.
func uncommented(statement string) string { return comments.ReplaceAllString(statement, "") }

var comments = regexp.MustCompile(`(?m)^--.*\n`)

// located is a name of the store, with the ending, as statements have it. It needs no escaping: see Config.validate.
func (c Config) located(ending string) string {
	quoted := `"` + c.Table + ending + `"`
	if c.Schema == "" {
		return quoted
	}
	return `"` + c.Schema + `".` + quoted
}

// cleanAt is when to look at a record that expires: what it was if that does, so that no index is written.
const cleanAt = `CASE WHEN x.clean_at BETWEEN expires AND expires + (expires - t) * 2 THEN x.clean_at
	ELSE expires + (expires - t) / 16 END`

// namesOf fills in the names of one store.
func namesOf(cfg Config) *strings.Replacer {
	beats := cfg.located("_beats")
	pairs := []string{
		"{records}", cfg.located(""), "{beats}", beats, "{settings}", cfg.located("_settings"),
		"{duplicates}", cfg.located("_duplicates"), "{scopes}", cfg.located("_scopes"),
		"{settlers}", strconv.Itoa(dedupstore.MaxSettled), "{page}", strconv.Itoa(pageSize),
		"{blocks}", strconv.Itoa(countSize), "{duplicate_blocks}", strconv.Itoa(duplicatesSize),
		"{clean_at}", cleanAt, "{picked}", picked, "{lives_until}", strings.ReplaceAll(livesUntil, "{beats}", beats),
	}
	for _, index := range [...]string{"pkey", "clean", "beats_pkey", "beats_clean", "duplicates_pkey", "scopes_pkey"} {
		pairs = append(pairs, "{"+index+"}", `"`+cfg.Table+"_"+index+`"`)
	}
	return strings.NewReplacer(pairs...)
}
