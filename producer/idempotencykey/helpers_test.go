package idempotencykey_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/internal/leaktest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newMiddleware makes a middleware over a store in memory with the default policy.
func newMiddleware(t testing.TB, c idempotencykey.Config) *idempotencykey.Middleware {
	t.Helper()
	return keytest.NewMiddleware(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{}), c)
}

// serveLinger is keytest.Serve, where runs go on for a certain time after their clients have gone.
func serveLinger(t testing.TB, g *oncemill.Guard, c idempotencykey.Config, linger time.Duration,
	handler http.HandlerFunc) *keytest.Rig {
	t.Helper()
	m := keytest.NewMiddleware(t, g, c)
	m.SetLinger(linger)
	return keytest.ServeOver(t, m, handler)
}

// serveMemory is keytest.Serve over a store in memory with the default policy.
func serveMemory(t testing.TB, c idempotencykey.Config, handler http.HandlerFunc) *keytest.Rig {
	t.Helper()
	return keytest.ServeOver(t, newMiddleware(t, c), handler)
}
