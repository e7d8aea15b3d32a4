package idempotencykey_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestNew_RefusesAConfigThatContradictsItself(t *testing.T) {
	t.Parallel()
	g := newGuard(t, newMemory(t), oncemill.Policy{})
	for _, tc := range []struct {
		field  string
		change func(c *idempotencykey.Config)
	}{
		{"Account", func(c *idempotencykey.Config) { c.Account = nil }},
		{"Group", func(c *idempotencykey.Config) { c.Group = strings.Repeat("g", 129) }},
		{"Unsupported", func(c *idempotencykey.Config) { c.Unsupported = "perhaps" }},
		{"ServerErrors", func(c *idempotencykey.Config) { c.ServerErrors = "perhaps" }},
		{"MinKeyLength", func(c *idempotencykey.Config) { c.MinKeyLength = -1 }},
		{"MaxKeyLength", func(c *idempotencykey.Config) { c.MinKeyLength, c.MaxKeyLength = 10, 9 }},
		{"MaxKeyLength", func(c *idempotencykey.Config) { c.MaxKeyLength = 513 }},
		{"MaxRequestBody", func(c *idempotencykey.Config) { c.MaxRequestBody = -1 }},
		{"MaxResponseBody", func(c *idempotencykey.Config) { c.MaxResponseBody = 64 << 10 }},
		{"MaxWait", func(c *idempotencykey.Config) { c.MaxWait = -1 }},
		{"DocsURL", func(c *idempotencykey.Config) { c.DocsURL = "https://x/#y" }},
		{"DocsURL", func(c *idempotencykey.Config) { c.DocsURL = "https://x/\r\nSet-Cookie: a" }},
		{"Headers", func(c *idempotencykey.Config) { c.Headers = []string{"a b"} }},
		{"ReplayedHeader", func(c *idempotencykey.Config) { c.ReplayedHeader = "a:" }},
		{"FingerprintHeaders", func(c *idempotencykey.Config) { c.FingerprintHeaders = []string{""} }},
		{"FingerprintHeaders", func(c *idempotencykey.Config) { c.FingerprintHeaders = []string{"Accept", "host"} }}, // it is not in Request.Header
		{"StoreHeaders", func(c *idempotencykey.Config) { c.StoreHeaders = []string{"content-length"} }},
		{"StoreHeaders", func(c *idempotencykey.Config) { c.StoreHeaders = []string{"idempotent-replayed"} }},
	} {
		c := idempotencykey.Config{Account: idempotencykey.SingleTenant}
		tc.change(&c)
		_, err := idempotencykey.New(g, c)
		if e, ok := errors.AsType[*dedupstore.InvalidError](err); !ok || e.Field != "Config."+tc.field {
			t.Errorf("%s: got %v", tc.field, err)
		}
	}
	if _, err := idempotencykey.New(nil, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a guard that is nil was taken")
	}
	ignoring := newGuard(t, newMemory(t), oncemill.Policy{Mismatch: oncemill.MismatchIgnore})
	if _, err := idempotencykey.New(ignoring, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a policy under which other requests with a key get its response was taken")
	}
	tiny := newGuard(t, newMemory(t), oncemill.Policy{MaxResultBytes: 1000})
	if _, err := idempotencykey.New(tiny, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a policy that leaves no room for headers was taken")
	}
}
