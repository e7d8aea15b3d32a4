package rpctest

import (
	"context"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
)

// Configs tests what a package's New refuses. The errors begin with the package's name.
func Configs(t *testing.T, name string, make func(g *oncemill.Guard, s Settings) error) {
	t.Helper()
	guard := func(p oncemill.Policy) *oncemill.Guard { return keytest.NewGuard(t, keytest.NewMemory(t), p) }
	account := func(context.Context) (string, error) { return "a", nil }
	for _, tc := range []struct {
		says  string
		guard *oncemill.Guard
		s     Settings
	}{
		{"guard is nil", nil, Settings{Account: account}},
		{`guard has a policy with Mismatch "ignore"`, guard(oncemill.Policy{Mismatch: oncemill.MismatchIgnore}),
			Settings{Account: account}},
		{"guard has a policy with MaxResultBytes 1000", guard(oncemill.Policy{MaxResultBytes: 1000}),
			Settings{Account: account}},
		{"Config.Account is nil", guard(oncemill.Policy{}), Settings{}},
		{"Config.Group is ", guard(oncemill.Policy{}), Settings{Account: account, Group: "a\nb"}},
		{"Config.MaxWait is -1ns", guard(oncemill.Policy{}), Settings{Account: account, MaxWait: -1}},
		{"Config.KeyField is rpctest.repeated", guard(oncemill.Policy{}),
			Settings{Account: account, KeyField: repeated}},
		{"Config.KeyField is rpctest.of_fields", guard(oncemill.Policy{}),
			Settings{Account: account, KeyField: ofFields}},
		{"method rpctest.Mistaken.Order has its key in the field value.no", guard(oncemill.Policy{}),
			Settings{Account: account, KeyField: mistaken}},
	} {
		err := make(tc.guard, tc.s)
		if err == nil || !strings.HasPrefix(err.Error(), name+": "+tc.says) {
			t.Errorf("got %v, want %s: %s", err, name, tc.says)
		}
	}
	if err := make(guard(oncemill.Policy{}), Settings{Account: account, KeyField: KeyField}); err != nil {
		t.Error(err)
	}
}
