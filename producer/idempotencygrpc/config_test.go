package idempotencygrpc_test

import (
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/rpc/rpctest"
	"github.com/oncemill/oncemill/producer/idempotencygrpc"
)

func TestNew_NamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	rpctest.Configs(t, "idempotencygrpc", func(g *oncemill.Guard, s rpctest.Settings) error {
		_, err := idempotencygrpc.New(g, config(s))
		return err
	})
	for says, c := range map[string]idempotencygrpc.ClientConfig{
		"idempotencygrpc: ClientConfig.MaxAttempts is -1, want at least 1": {MaxAttempts: -1},
		"idempotencygrpc: ClientConfig.MaxElapsed is -1s, want at least 0": {MaxElapsed: -time.Second},
	} {
		if _, err := idempotencygrpc.NewClientInterceptor(c); err == nil || err.Error() != says {
			t.Errorf("got %v, want %s", err, says)
		}
	}
}
