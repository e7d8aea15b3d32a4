package idempotencykey_test

import (
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

func TestNew_RefusesAConfigThatContradictsItself(t *testing.T) {
	t.Parallel()
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	for _, tc := range []struct {
		field  string
		change func(c *idempotencykey.Config)
	}{
		{"Account", func(c *idempotencykey.Config) { c.Account = nil }},
		{"Group", func(c *idempotencykey.Config) { c.Group = strings.Repeat("g", 129) }},
		{"MaxRequestBody", func(c *idempotencykey.Config) { c.MaxRequestBody = -1 }},
		{"MaxWait", func(c *idempotencykey.Config) { c.MaxWait = -1 }},
	} {
		c := idempotencykey.Config{Account: idempotencykey.SingleTenant}
		tc.change(&c)
		_, err := idempotencykey.New(g, c)
		if err == nil || !strings.HasPrefix(err.Error(), "idempotencykey: Config."+tc.field+" is ") {
			t.Errorf("%s: got %v", tc.field, err)
		}
	}
	if _, err := idempotencykey.New(nil, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a guard that is nil was taken")
	}
	ignoring := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{Mismatch: oncemill.MismatchIgnore})
	if _, err := idempotencykey.New(ignoring, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a policy under which other requests with a key get its response was taken")
	}
	tiny := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{MaxResultBytes: 1000})
	if _, err := idempotencykey.New(tiny, idempotencykey.Config{Account: idempotencykey.SingleTenant}); err == nil {
		t.Error("a policy that leaves no room for headers was taken")
	}
}
