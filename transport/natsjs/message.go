package natsjs

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrWorkerSettles is what a Handler's message answers to Ack, DoubleAck, Nak, NakWithDelay, Term and TermWithReason: the
// worker settles it, by what the handler returns.
var ErrWorkerSettles = errors.New("natsjs: the Worker settles the message: return nil, or an error")

// A message is what handlers get.
type message struct{ jetstream.Msg }

func (message) Ack() error                       { return ErrWorkerSettles }
func (message) DoubleAck(context.Context) error  { return ErrWorkerSettles }
func (message) Nak() error                       { return ErrWorkerSettles }
func (message) NakWithDelay(time.Duration) error { return ErrWorkerSettles }
func (message) Term() error                      { return ErrWorkerSettles }
func (message) TermWithReason(string) error      { return ErrWorkerSettles }
