package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A Redis is a server of this program's own, empty at first, that keeps nothing on disk.
type Redis struct {
	Addr  string        // host:port
	Admin *redis.Client // a connection beside those that are measured

	process *testserver.Process
	dir     string
}

// StartRedis runs the redis-server in PATH on a free loopback port. The caller stops it.
func StartRedis() (*Redis, error) {
	dir, err := os.MkdirTemp("", "oncemill-bench-")
	if err != nil {
		return nil, err
	}
	var p *testserver.Process
	var addr string
	err = testserver.OnFreePort(func(port int) (err error) {
		addr = testserver.Loopback(port)
		p, err = redistest.StartAt(dir, port, "--appendonly", "no")
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kit: redis-server: %w", err), os.RemoveAll(dir))
	}
	admin := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, ReadTimeout: time.Minute})
	return &Redis{Addr: addr, Admin: admin, process: p, dir: dir}, nil
}

// Stop ends the server and waits for its end.
func (r *Redis) Stop() error {
	return errors.Join(r.Admin.Close(), r.process.Kill(), os.RemoveAll(r.dir))
}

// Flush removes all records, and returns when their memory is free.
func (r *Redis) Flush(ctx context.Context) error { return r.Admin.Do(ctx, "FLUSHALL", "SYNC").Err() }

// CPU is the time that the server has used, user and system.
func (r *Redis) CPU(ctx context.Context) (time.Duration, error) {
	var sum float64
	for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := r.info(ctx, "cpu", field)
		if err != nil {
			return 0, err
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

// Memory is how many bytes the server has allocated. It waits until no other client is connected, whose buffers would
// count.
func (r *Redis) Memory(ctx context.Context) (int64, error) {
	for {
		clients, err := r.info(ctx, "clients", "connected_clients")
		if err != nil {
			return 0, err
		}
		if clients <= 1 {
			bytes, err := r.info(ctx, "memory", "used_memory")
			return int64(bytes), err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// info reads one number of a section of INFO.
func (r *Redis) info(ctx context.Context, section, field string) (float64, error) {
	text, err := r.Admin.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseFloat(strings.TrimSpace(v), 64)
		}
	}
	return 0, fmt.Errorf("kit: INFO %s has no %s", section, field)
}
