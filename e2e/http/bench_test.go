package http_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

// A replay takes one round trip to Redis: compare "replay" with "claim", that round trip alone.
func BenchmarkRedis(b *testing.B) {
	rdb := redistest.Start(b).Client()
	store, err := redisstore.New(rdb, redisstore.Config{})
	if err != nil {
		b.Fatal(err)
	}
	h := keytest.HandlerOver(b, store)
	keytest.Call(h, "stored")
	b.Run("replay", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if status, header := keytest.Call(h, "stored"); header.Get("Idempotent-Replayed") != "true" {
				b.Fatal(status)
			}
		}
	})
	b.Run("claim", func(b *testing.B) {
		r := dedupstore.Request{
			Key:   dedupstore.Key{Tenant: "default", Group: "http", Handler: "POST " + keytest.Route, ID: "stored"},
			Owner: "0123456789abcdef",
			Lease: 30 * time.Second, Retention: 24 * time.Hour, MaxAttempts: 10,
		}
		b.ReportAllocs()
		for b.Loop() {
			answer, err := dedupstore.ClaimOne(b.Context(), store, r)
			if err != nil || answer.Status != dedupstore.Done {
				b.Fatal(answer.Status, err)
			}
		}
	})
	b.Run("first request", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			keytest.Call(h, "k"+strconv.FormatInt(fresh.Add(1), 10))
		}
	})
}

// fresh numbers keys.
var fresh atomic.Int64
