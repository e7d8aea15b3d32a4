package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/redis/go-redis/v9"
)

// Slot is the slot of a key in a Redis Cluster: CRC-16/XMODEM of the key, or of what stands between its first braces,
// modulo 16384.
func Slot(key string) int {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(after, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % clusterSlots
}

// MoveSlots moves slots from one master to another while clients go on, as redis-cli --cluster reshard does: slot by
// slot, in batches of keys. It returns how many keys it moved.
func (c *Cluster) MoveSlots(ctx context.Context, from, to *Server, slots []int) (moved int, err error) {
	source, target := redis.NewClient(from.Options()), redis.NewClient(to.Options())
	defer source.Close()
	defer target.Close()
	fromID, err := source.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return 0, fmt.Errorf("move slots: %w", err)
	}
	toID, err := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return 0, fmt.Errorf("move slots: %w", err)
	}
	for _, slot := range slots {
		if err := target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID).Err(); err != nil {
			return moved, fmt.Errorf("import slot %d: %w", slot, err)
		}
		if err := source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID).Err(); err != nil {
			return moved, fmt.Errorf("migrate slot %d: %w", slot, err)
		}
		n, err := moveKeys(ctx, source, to.port, slot)
		moved += n
		if err != nil {
			return moved, fmt.Errorf("move keys of slot %d: %w", slot, err)
		}
		// First the target, so that there is never nobody who serves the slot; gossip tells the replicas.
		for _, rdb := range []*redis.Client{target, source} {
			if err := rdb.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", toID).Err(); err != nil {
				return moved, fmt.Errorf("hand over slot %d: %w", slot, err)
			}
		}
	}
	return moved, nil
}

// moveKeys moves the keys of a slot until there is none left: no new ones come, as it is migrating.
func moveKeys(ctx context.Context, source *redis.Client, port, slot int) (moved int, err error) {
	for {
		keys, err := source.ClusterGetKeysInSlot(ctx, slot, 100).Result()
		if err != nil || len(keys) == 0 {
			return moved, err
		}
		args := []any{"MIGRATE", "127.0.0.1", strconv.Itoa(port), "", 0, int(testserver.WaitLimit.Milliseconds()), "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := source.Do(ctx, args...).Err(); err != nil {
			return moved, err
		}
		moved += len(keys)
	}
}
