package redisstore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A file has the commands that write what this store would have written.
func TestRecord_OfReleasedVersionsIsReadAndContinued(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	const prefix = "golden"
	s := must(New(rdb, Config{Prefix: prefix}))(t)
	goldentest.Run(t, func(t *testing.T) []byte {
		goldentest.Write(t, s)
		names := must(rdb.Keys(t.Context(), prefix+":*").Result())(t)
		slices.Sort(names)
		var lines strings.Builder
		for _, name := range names {
			command := []string{"SET", name}
			if strings.HasSuffix(name, beside) {
				command[0] = "HSET"
				for field, value := range must(rdb.HGetAll(t.Context(), name).Result())(t) {
					command = append(command, field, value)
				}
			} else {
				command = append(command, must(rdb.Get(t.Context(), name).Result())(t))
			}
			lines.WriteString(goldentest.Line(command...))
		}
		return []byte(lines.String())
	}, func(t *testing.T, content []byte) {
		for _, command := range goldentest.Lines(t, content) {
			args := make([]any, len(command))
			for i, arg := range command {
				args[i] = arg
			}
			pipe := rdb.TxPipeline()
			pipe.Do(t.Context(), args...)
			pipe.Expire(t.Context(), command[1], time.Hour)
			must(pipe.Exec(t.Context()))(t)
		}
		goldentest.Read(t, s)
	})
}
