package natsjs_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// routed runs a Router over the source until the test ends. Its handler succeeds at the nth run; it returns the runs.
func (r *rig) routed(nth int32) *atomic.Int32 {
	r.t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		r.t.Fatal(err)
	}
	var runs atomic.Int32
	once := r.processor()
	router.AddMiddleware(oncewatermill.Middleware(once))
	router.AddConsumerHandler("charge", "orders", r.subscriber(r.sourceOf(once)), func(*message.Message) error {
		if runs.Add(1) < nth {
			return errors.New("not yet")
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	r.t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			r.t.Error(err)
		}
	})
	<-router.Running()
	return &runs
}
