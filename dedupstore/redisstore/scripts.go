package redisstore

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	_ "embed"     // the scripts
	"encoding/hex"
)

var (
	//go:embed record.lua
	recordSource string
	//go:embed claim_fresh.lua
	claimFreshSource string
	//go:embed claim.lua
	claimSource string
	//go:embed extend.lua
	extendSource string
	//go:embed finish_plain.lua
	finishPlainSource string
	//go:embed finish.lua
	finishSource string
	//go:embed release.lua
	releaseSource string
	//go:embed published.lua
	publishedSource string
	//go:embed note.lua
	noteSource string
	//go:embed rights.lua
	rightsSource string
)

// A script is what an operation runs. What happens most stands in front of what the scripts share: a first claim and a
// plain finish pay nothing for the rest.
type script struct {
	name   string // for error messages
	source string
	sha    any // a string: what commands are made of
}

var (
	claimScript     = newScript("claim", claimFreshSource+recordSource+claimSource)
	extendScript    = newScript("extend", recordSource+extendSource)
	finishScript    = newScript("finish", finishPlainSource+recordSource+finishSource)
	releaseScript   = newScript("release", recordSource+releaseSource)
	publishedScript = newScript("published", recordSource+publishedSource)
	noteScript      = newScript("note", noteSource)
)

func newScript(name, source string) *script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see above
	return &script{name, source, hex.EncodeToString(sum[:])}
}
