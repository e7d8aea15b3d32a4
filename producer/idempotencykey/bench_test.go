package idempotencykey_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/keytest"
)

// What requests cost beside their round trips: "first" and "replay" less "bare", over a store that answers at once.
func BenchmarkOwn(b *testing.B) {
	b.Run("first", func(b *testing.B) {
		store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{MaxBytes: 1 << 34})
		if err != nil {
			b.Fatal(err)
		}
		h := keytest.HandlerOver(b, store)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if status, _ := keytest.Call(h, "k"+strconv.Itoa(i)); status != http.StatusCreated {
				b.Fatal(status)
			}
		}
	})
	b.Run("replay", func(b *testing.B) {
		h := keytest.HandlerOver(b, keytest.NewMemory(b))
		b.ReportAllocs()
		for b.Loop() {
			keytest.Call(h, "k")
		}
	})
	b.Run("bare", func(b *testing.B) {
		mux := http.NewServeMux()
		mux.HandleFunc(keytest.Route, keytest.Respond)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			keytest.Call(mux, "k"+strconv.Itoa(i))
		}
	})
}
