package pgoutbox

import (
	_ "embed"
	"fmt"
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
	schema, settings, present, stay      string
	insert, lock, find, revive           string
	leaseLock, takeOver, lease, suspects string
	read, settle                         string
	tidyLock, clean, replay              string
	stats, requeue, discard              string
}

func statementsFor(cfg Config) statements {
	in := namesOf(cfg).Replace
	s := statements{
		settings: in(settingsSQL), present: in(presentSQL), stay: in(staySQL),
		insert: in(insertSQL), lock: in(lockSQL), find: in(findSQL), revive: in(reviveSQL),
		leaseLock: in(leaseLockSQL), takeOver: in(takeOverSQL), lease: in(leaseSQL), suspects: in(suspectsSQL),
		read: in(readSQL), settle: in(settleSQL),
		tidyLock: in(tidyLockSQL), clean: in(cleanSQL), replay: in(replaySQL),
		stats: in(statsSQL), requeue: in(requeueSQL), discard: in(discardSQL),
	}
	schema := schemaSQL
	if cfg.Ordered {
		s.lease, s.suspects = in(orderedLeaseSQL), in(orderedSuspectsSQL)
		schema += "\n" + orderedSQL
	}
	s.schema = in(schema + fmt.Sprintf(keepSQL, version, cfg.Ordered))
	return s
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
	place := "NULL"
	if cfg.Ordered {
		place = "CASE WHEN m.key <> '' THEN nextval('" + located("_places") + "') END"
	}
	pairs := []string{"{table}", located(""), "{lease}", located("_lease"), "{settings}", located("_settings"),
		"{places}", located("_places"), "{place}", place, "{dead_blocks}", strconv.FormatBool(!cfg.SkipDead)}
	for _, index := range [...]string{"pkey", "next", "suspects", "published", "dead", "lanes", "keys", "delayed"} {
		pairs = append(pairs, "{"+index+"}", quoted("_"+index))
	}
	return strings.NewReplacer(pairs...)
}
