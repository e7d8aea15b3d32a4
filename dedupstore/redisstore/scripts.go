package redisstore

import (
	_ "embed" // the scripts
	"errors"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed record.lua
	recordSource string
	//go:embed claim.lua
	claimSource string
	//go:embed extend.lua
	extendSource string
	//go:embed finish.lua
	finishSource string
	//go:embed release.lua
	releaseSource string
	//go:embed published.lua
	publishedSource string
)

// An operation is a script with its name for error messages.
type operation struct {
	name   string
	script *redis.Script
}

var (
	opClaim     = newOperation("claim", claimSource)
	opExtend    = newOperation("extend", extendSource)
	opFinish    = newOperation("finish", finishSource)
	opRelease   = newOperation("release", releaseSource)
	opPublished = newOperation("published", publishedSource)
)

func newOperation(name, source string) operation {
	return operation{name, redis.NewScript(recordSource + source)}
}

// The replies that are not answers.
const (
	replyOK         = "ok"
	replyLost       = "lost"
	replyUnreadable = "unreadable"
	replyFull       = "full"
)

var errReply = errors.New("the script's reply is malformed")

// texts takes a script's reply apart: an array of strings, at least one.
func texts(reply any) ([]string, error) {
	values, ok := reply.([]any)
	if !ok || len(values) == 0 {
		return nil, errReply
	}
	out := make([]string, len(values))
	for i, v := range values {
		if out[i], ok = v.(string); !ok {
			return nil, errReply
		}
	}
	return out, nil
}
