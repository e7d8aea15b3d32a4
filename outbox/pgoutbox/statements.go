package pgoutbox

import (
	_ "embed"
	"strconv"
	"strings"
)

var (
	//go:embed schema.sql
	schemaSQL string

	//go:embed ordered.sql
	orderedSQL string
)

// statements are the SQL of one outbox.
type statements struct {
	schema, ordered, settings, keep, present, stay string
	insert, lock, find, revive                     string
	leaseLock, takeOver, lease, suspects           string
	read, settle                                   string
	settlePublished, settleRemoved                 string
	tidyLock, clean, replay                        string
	stats, dead, requeue, discard                  string
}

func statementsFor(cfg Config) statements {
	in := namesOf(cfg).Replace
	s := statements{
		schema: in(schemaSQL), ordered: in(orderedSQL), settings: in(settingsSQL), keep: in(keepSQL),
		present: in(presentSQL), stay: in(staySQL),
		insert: in(insertSQL), lock: in(lockSQL), find: in(findSQL), revive: in(reviveSQL),
		leaseLock: in(leaseLockSQL), takeOver: in(takeOverSQL), lease: in(leaseSQL), suspects: in(suspectsSQL),
		read: in(readSQL), settle: in(settleSQL),
		settlePublished: settleAlike(in, `UPDATE {table} SET published_at = (SELECT clock_timestamp())`),
		settleRemoved:   settleAlike(in, `DELETE FROM {table}`),
		tidyLock:        in(tidyLockSQL), clean: in(cleanSQL), replay: in(replaySQL),
		stats: in(statsSQL), dead: in(deadSQL), requeue: in(requeueSQL), discard: in(discardSQL),
	}
	if cfg.Ordered {
		s.lease, s.suspects, s.read = in(orderedLeaseSQL), in(orderedSuspectsSQL), in(orderedReadSQL)
	}
	return s
}

func settleAlike(in func(string) string, outcome string) string {
	return in(strings.Replace(settleAlikeSQL, "{outcome}", outcome, 1))
}

// namesOf fills in the names of one outbox. They need no escaping: see Config.validate.
func namesOf(cfg Config) *strings.Replacer {
	quoted := func(ending string) string { return `"` + cfg.Table + ending + `"` }
	located := func(ending string) string {
		if cfg.Schema == "" {
			return quoted(ending)
		}
		return `"` + cfg.Schema + `".` + quoted(ending)
	}
	pairs := []string{"{table}", located(""), "{lease}", located("_lease"), "{settings}", located("_settings")}
	for _, index := range [...]string{"pkey", "next", "suspects", "published", "dead", "lanes", "keys", "delayed"} {
		pairs = append(pairs, "{"+index+"}", quoted("_"+index))
	}
	pairs = append(pairs, "{places}", located("_places"), "{complete}", complete(located, cfg.Ordered))
	pairs = append(pairs, columns(cfg.Debezium)...)
	if cfg.Ordered {
		pairs = append(pairs, "{place}", "CASE WHEN m.key <> '' THEN nextval('"+located("_places")+"') END")
	} else {
		pairs = append(pairs, "{place}", "NULL")
	}
	return strings.NewReplacer(append(pairs, "{dead_blocks}", strconv.FormatBool(!cfg.SkipDead))...)
}

// complete asks whether everything is there that somebody may have dropped.
func complete(located func(ending string) string, ordered bool) string {
	endings := []string{"", "_lease", "_next", "_suspects", "_published", "_dead"}
	if ordered {
		endings = append(endings, "_lanes", "_keys", "_delayed")
	}
	var there []string
	for _, ending := range endings {
		there = append(there, "to_regclass('"+located(ending)+"') IS NOT NULL")
	}
	return strings.Join(there, " AND ")
}

// columns are those whose names the preset for Debezium changes, and the one that it adds.
func columns(debezium bool) []string {
	if debezium {
		return []string{
			"{topic}", "aggregatetype", "{key}", "aggregateid",
			"{type}", "type text NOT NULL, -- of the event, for whoever routes by it", "{type_column}", "type, ",
			"{type_value}", "m.type, ",
		}
	}
	return []string{"{topic}", "topic", "{key}", "key", "{type}", "", "{type_column}", "", "{type_value}", ""}
}
