package franz

import (
	"context"
	"slices"
	"time"
)

// A revocation gives handlers half of the rebalance timeout to finish, then a tenth to see that their contexts have
// ended, and the commit a quarter. The coordinator puts a member that takes longer out of the group.
const (
	finishShare = 2
	cancelShare = 10
	commitShare = 4
)

// revoke gives partitions to their next owner: what waits is dropped, running handlers may finish, and what is settled
// is committed.
func (s *session) revoke(ctx context.Context, revoked map[string][]int32) {
	partitions := s.fetching.owned(revoked)
	if len(partitions) == 0 {
		return
	}
	for _, p := range partitions {
		p.halt()
	}
	if late := ended(partitions, s.rebalance/finishShare); len(late) > 0 {
		for _, p := range late {
			s.log.WarnContext(ctx, "franz: handlers take too long for a rebalance and are cancelled",
				"partition", p.name(), "after", s.rebalance/finishShare)
			p.cancel(errRevoked)
		}
		ended(late, s.rebalance/cancelShare)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.rebalance/commitShare)
	defer cancel()
	s.settling.mu.Lock() // no commit of these partitions may follow
	defer s.settling.mu.Unlock()
	err := s.settling.commitLocked(ctx, func() []*partition { return partitions })
	if err != nil {
		s.log.WarnContext(ctx,
			"franz: offsets of revoked partitions are not confirmed: their next owner gets records again that are "+
				"settled",
			"group", s.group, "error", err)
	}
	s.fetching.forget(partitions, err)
}

// lose drops partitions that another member may have already.
func (s *session) lose(lost map[string][]int32) {
	partitions := s.fetching.owned(lost)
	var unconfirmed error
	for _, p := range partitions {
		s.log.Warn("franz: partition was lost", "partition", p.name(), "group", s.group)
		p.halt()
		p.cancel(errLost)
		if _, due := p.due(); due {
			unconfirmed = errLost
		}
	}
	s.fetching.forget(partitions, unconfirmed)
}

// drain waits for what runs and commits what is settled. It returns ErrUnconfirmed if that is not confirmed.
func (s *session) drain(ctx context.Context, cancel context.CancelCauseFunc) error {
	partitions := s.fetching.all()
	if late := ended(partitions, s.config.Grace); len(late) > 0 {
		for _, p := range late {
			s.log.WarnContext(ctx, "franz: handlers take too long for the shutdown and are cancelled",
				"partition", p.name(), "after", s.config.Grace)
		}
		cancel(errGrace)
		ended(late, s.rebalance/cancelShare)
	}
	return s.finally(ctx)
}

// finally commits what is settled. It returns ErrUnconfirmed if that is not confirmed.
func (s *session) finally(ctx context.Context) error {
	// The client holds commits back while it joins, and a dead member can hold a join for the whole rebalance timeout.
	ctx, stop := context.WithTimeout(ctx, 2*s.rebalance)
	defer stop()
	return s.settling.finally(ctx)
}

// ended waits for partitions to end, and returns those that have not in time.
func ended(partitions []*partition, timeout time.Duration) (late []*partition) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for i, p := range partitions {
		select {
		case <-p.ended:
		case <-timer.C:
			return slices.DeleteFunc(slices.Clone(partitions[i:]), func(p *partition) bool { return closed(p.ended) })
		}
	}
	return nil
}
