package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

// AwaitReplicas waits until a number of replicas have everything that was written to the server before the call. (WAIT
// promises that for what its own connection wrote.)
func (s *Server) AwaitReplicas(n int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testserver.WaitLimit)
	defer cancel()
	rdb := redis.NewClient(s.Options())
	defer rdb.Close()
	written := int64(-1)
	err := testserver.Until(ctx, func() error {
		offset, acked, err := offsets(ctx, rdb)
		if err != nil {
			return err
		}
		if written < 0 {
			written = offset
		}
		have := 0
		for _, a := range acked {
			if a >= written {
				have++
			}
		}
		if have < n {
			return fmt.Errorf("%d of %d replicas have what was written", have, n)
		}
		return nil
	})
	if err != nil {
		s.t.Fatalf("testserver: replicas of %s: %v", s.Addr, err)
	}
}

// offsets are how far a master has written, and what its replicas that are online have acknowledged.
func offsets(ctx context.Context, rdb *redis.Client) (written int64, acked []int64, err error) {
	info, err := rdb.Info(ctx, "replication").Result()
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "master_repl_offset" {
			if written, err = strconv.ParseInt(value, 10, 64); err != nil {
				return 0, nil, err
			}
		}
		if _, offset, ok := strings.Cut(value, "state=online,offset="); ok {
			number, _, _ := strings.Cut(offset, ",")
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return 0, nil, err
			}
			acked = append(acked, n)
		}
	}
	return written, acked, nil
}
