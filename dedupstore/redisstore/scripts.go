package redisstore

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"embed"
	"encoding/hex"
)

//go:embed *.lua
var sources embed.FS

// source joins parts of a script.
func source(parts ...string) (text string) {
	for _, part := range parts {
		b, _ := sources.ReadFile(part + ".lua")
		text += string(b)
	}
	return text
}

// A script is what an operation runs. The frequent operations come first in it, so a first claim and a plain finish do
// not pay for the rest.
type script struct {
	name   string // for error messages
	source string
	sha    any // a string: what commands are made of
}

var (
	claimScript     = newScript("claim", "claim_fresh", "claim_again", "record", "claim")
	extendScript    = newScript("extend", "record", "extend")
	finishScript    = newScript("finish", "finish_plain", "record", "finish")
	releaseScript   = newScript("release", "record", "release")
	publishedScript = newScript("published", "record", "published")
	noteScript      = newScript("note", "note")
)

func newScript(name string, parts ...string) *script { return scriptOf(name, source(parts...)) }

func scriptOf(name, source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see above
	return &script{name, source, hex.EncodeToString(sum[:])}
}
