package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

// strike returns an error once for an order whose fate is this fault.
func (s *stack) strike(ctx context.Context, f fault, orderID string, failure error) error {
	if s.fates[orderID] != f {
		return nil
	}
	first, err := s.shop.first(ctx, s.name, orderID)
	if err == nil && first {
		err = failure
	}
	return err
}

// loseAcks plays the process that dies after the chain returned, before outputs are published and the ack is sent.
func (s *stack) loseAcks(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		outputs, err := next(msg)
		if err != nil {
			return nil, err
		}
		ctx, id := context.WithoutCancel(msg.Context()), msg.Metadata.Get(producer.HeaderID)
		if err := s.strike(ctx, ackLost, id, errors.New("injected: died before the ack")); err != nil {
			return nil, err
		}
		return outputs, nil
	}
}

// mortality is the dedup store as seen by handlers that may die. A dead handler's claim can neither be extended nor
// settled, as if its process were gone; its lease ends by itself. It also notes which charges had their outcome stored.
type mortality struct {
	dedupstore.Inspector
	shop *store
	dead sync.Map // fences of dead runs
}

var errDead = errors.New("injected: the handler's process is dead")

// kill ends a run between its effect and its outcome.
func (m *mortality) kill(run oncemill.Run) { m.dead.Store(run.Fence, true) }

func (m *mortality) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, m.extendOne)
}

func (m *mortality) extendOne(ctx context.Context, x dedupstore.Extension) error {
	if _, dead := m.dead.Load(x.Claim.Fence); dead {
		return errDead
	}
	return dedupstore.ExtendOne(ctx, m.Inspector, x)
}

func (m *mortality) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, m.settleOne)
}

func (m *mortality) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	if _, dead := m.dead.Load(c.Fence); dead {
		return errDead
	}
	err := dedupstore.SettleOne(ctx, m.Inspector, c, s)
	if _, finished := s.(dedupstore.Finish); err != nil || !finished {
		return err
	}
	_, err = m.shop.db.ExecContext(ctx, `INSERT INTO settled
		SELECT entry, ? FROM ledger WHERE stack = ? AND order_id = ? AND pid = ? ORDER BY entry DESC LIMIT 1
		ON CONFLICT DO NOTHING`,
		time.Now().UnixMicro(), guarded, c.Key.ID, os.Getpid())
	return err
}
