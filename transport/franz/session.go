package franz

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/telemetry"
	"github.com/oncemill/oncemill/internal/worker"
)

// A session is one Run: what a worker has while it is a member of a group.
type session struct {
	*troubles
	config    Config
	policy    oncemill.Policy
	cl        *kgo.Client
	publisher *Publisher    // to the retry topics, on the same client; nil: there are none
	rebalance time.Duration // the rebalance timeout
	look      time.Duration // how often it looks for what kgo tells nobody; zero: the session timeout
	loop      *worker.Loop
	decoder   decoder
	poller    poller
	committer committer
	stalled   pace.Limiter // of lines about records that wait
	uncopied  pace.Limiter // of lines about copies that cannot be made
}

func newSession(w *Worker, cl *kgo.Client) (s *session, err error) {
	s = &session{
		troubles: newTroubles(option[string](cl, kgo.ConsumerGroup), w.config.Logger),
		config:   w.config, policy: w.work.Once.Config().Policy, cl: cl, look: w.look,
		rebalance: option[time.Duration](cl, kgo.RebalanceTimeout),
		loop:      worker.New(w.work, w.config.MaxInFlight),
		decoder:   decoder{retry: w.config.Retry, consumed: consumed(cl)},
	}
	s.poller = poller{
		s: s, ids: map[string][16]byte{},
		partitions: map[partitionID]*partition{}, ending: map[partitionID]*partition{},
	}
	s.committer.s = s
	if len(w.config.Retry) > 0 {
		s.publisher, err = NewPublisher(cl, PublisherConfig{Telemetry: s.policy.Telemetry})
	}
	return s, err
}

// option returns the value of a client's option.
func option[T any](cl *kgo.Client, opt any) T {
	value, _ := cl.OptValue(opt).(T)
	return value
}

// run consumes until ctx ends or the worker cannot go on.
func (s *session) run(ctx context.Context) error {
	log := s.log.With("handler", cmp.Or(s.config.Handler, "a Router's"), "group", s.group,
		"topics", s.cl.GetConsumeTopics())
	log.InfoContext(ctx, "franz: consuming begins")
	defer log.InfoContext(ctx, "franz: consuming has ended")
	detached := telemetry.Spanless(context.WithoutCancel(ctx))
	handlers, cancel := context.WithCancelCause(detached)
	defer cancel(nil)
	polling, stop := context.WithCancel(ctx)
	defer stop()

	var helpers sync.WaitGroup
	helpers.Go(func() { s.committer.regularly(polling) })
	helpers.Go(func() {
		every := cmp.Or(s.look, option[time.Duration](s.cl, kgo.SessionTimeout))
		s.lookOut(polling, every, membership(s.cl, s.rebalance))
	})
	helpers.Go(func() { s.poller.poll(polling, handlers) })
	var err error
	select {
	case err = <-s.failed:
	case <-ctx.Done():
	}
	stop()
	s.poller.halt()
	unconfirmed := s.drain(detached, cancel)
	helpers.Wait()
	s.poller.wait()
	s.loop.Wait()
	if unconfirmed == nil { // a handler that ignored the grace may have ended since
		unconfirmed = s.finally(detached)
	}
	if err != nil && unconfirmed != nil {
		s.log.WarnContext(detached, "franz: offsets are not confirmed: records are delivered again that are settled",
			"group", s.group, "error", unconfirmed)
	}
	return cmp.Or(err, unconfirmed)
}

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
	partitions := s.poller.owned(revoked)
	if len(partitions) == 0 {
		return
	}
	for _, p := range partitions {
		p.Halt()
	}
	if late := worker.Late(partitions, s.rebalance/finishShare); len(late) > 0 {
		for _, p := range late {
			s.log.WarnContext(ctx, "franz: handlers take too long for a rebalance and are cancelled",
				"partition", p.partitionID.String(), "after", s.rebalance/finishShare)
			p.Cancel(errRevoked)
		}
		worker.Late(late, s.rebalance/cancelShare)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.rebalance/commitShare)
	defer cancel()
	s.committer.mu.Lock() // no commit of these partitions may follow
	defer s.committer.mu.Unlock()
	err := s.committer.commitLocked(ctx, func() []*partition { return partitions })
	if err != nil {
		s.log.WarnContext(ctx,
			"franz: offsets of revoked partitions are not confirmed: their next owner gets records again that are "+
				"settled",
			"group", s.group, "error", err)
	}
	s.poller.forget(partitions, err)
}

// lose drops partitions that another member may have already.
func (s *session) lose(lost map[string][]int32) {
	partitions := s.poller.owned(lost)
	var unconfirmed error
	for _, p := range partitions {
		s.log.Warn("franz: partition was lost", "partition", p.partitionID.String(), "group", s.group)
		p.Halt()
		p.Cancel(errLost)
		if _, due := p.due(); due {
			unconfirmed = errLost
		}
	}
	s.poller.forget(partitions, unconfirmed)
}

// drain waits for what runs and commits what is settled. It returns ErrUnconfirmed if that is not confirmed.
func (s *session) drain(ctx context.Context, cancel context.CancelCauseFunc) error {
	partitions := s.poller.all()
	if late := worker.Late(partitions, s.config.Grace); len(late) > 0 {
		for _, p := range late {
			s.log.WarnContext(ctx, "franz: handlers take too long for the shutdown and are cancelled",
				"partition", p.partitionID.String(), "after", s.config.Grace)
		}
		cancel(errGrace)
		worker.Late(late, s.rebalance/cancelShare)
	}
	return s.finally(ctx)
}

// finally commits what is settled. It returns ErrUnconfirmed if that is not confirmed.
func (s *session) finally(ctx context.Context) error {
	// The client holds commits back while it joins, and a dead member can hold a join for the whole rebalance timeout.
	ctx, stop := context.WithTimeout(ctx, 2*s.rebalance)
	defer stop()
	return s.committer.finally(ctx)
}
