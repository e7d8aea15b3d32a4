package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errGeneration keeps a commit from being sent by another membership than the one that its offsets belong to.
var errGeneration = errors.New("franz: the group was rebalanced while the commit was being prepared")

// commitRegularly commits what is settled, until ctx ends. A commit that fails is made up for by the next.
func (s *session) commitRegularly(ctx context.Context) {
	tick := time.NewTicker(s.config.CommitEvery)
	defer tick.Stop()
	var failure limiter
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := s.commit(ctx); err != nil && ctx.Err() == nil {
			if refused := s.refused("", err); refused != nil {
				s.fail(refused)
				return
			}
			if failure.due(sayEvery) {
				s.log.WarnContext(ctx, "franz: commit failed, the next one that succeeds makes up for it",
					"group", s.group, "error", err)
			}
		}
		for _, p := range s.all() {
			p.warnOfGap(ctx)
		}
	}
}

func (s *session) commit(ctx context.Context) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	// Cancelled, a commit could overtake the next one on the way to the broker.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.rebalance)
	defer cancel()
	return s.commitLocked(ctx, s.all)
}

// gonePatience is for how long a topic may be unknown to the broker until its offsets are given up: a new topic is,
// too, for a moment.
const gonePatience = 5 * time.Second

// commitFinally commits everything that is settled, and tries again until it is confirmed, or cannot be, or ctx ends.
func (s *session) commitFinally(ctx context.Context) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	var since time.Time // when nothing but topics that are gone began to be wrong
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.commitLocked(ctx, s.all) // without those that a rebalance has taken meanwhile
		if err == nil {
			return s.givenUp()
		}
		switch {
		case !gone(err):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		s.committing.Unlock() // for a revocation
		pause(ctx, wait)
		s.committing.Lock()
		if ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) || s.refused("", err) != nil || gone(err) &&
			time.Since(since) > gonePatience {
			return unconfirmed(s.group, err)
		}
	}
}

// givenUp returns ErrUnconfirmed if a rebalance has taken something in the drain that was settled and is not confirmed.
func (s *session) givenUp() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unconfirmed != nil {
		return unconfirmed(s.group, s.unconfirmed)
	}
	return nil
}

// gone reports whether all that is wrong is that topics are not there.
func gone(err error) bool {
	if several, ok := err.(interface{ Unwrap() []error }); ok { // each of them
		return !slices.ContainsFunc(several.Unwrap(), func(err error) bool { return !gone(err) })
	}
	return errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition)
}

// commitLocked commits what is settled in partitions, and notes what the broker confirms.
func (s *session) commitLocked(ctx context.Context, partitions func() []*partition) error {
	member, generation := s.cl.GroupMetadata() // before the partitions: theirs, or an older one, which is refused
	owners := map[place]*partition{}
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, p := range partitions() {
		o, due := p.due()
		if !due {
			continue
		}
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.number] = o
		owners[place{p.topic, p.number}] = p
	}
	if len(offsets) == 0 {
		return nil
	}
	var failed, namesakes error
	checked := kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) (err error) {
		if req.MemberID != member || req.Generation != generation {
			return errGeneration // these partitions may have been lost and found
		}
		namesakes, err = s.dropNamesakes(ctx, req)
		return err
	})
	s.cl.CommitOffsetsSync(checked, offsets, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest,
		resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			failed = err
			return
		}
		s.byID = resp.Version >= 10
		failed = eachConfirmed(req, resp, func(at place) { owners[at].confirm(offsets[at.topic][at.partition]) })
	})
	if namesakes != nil {
		return errors.Join(failed, namesakes)
	}
	return failed
}

// dropNamesakes takes topics out of a commit that are others by now than those that were consumed: deleted, and made
// again. Offsets of the old one would pass over records of the new one. Since Kafka 4.2, commits name topics by ID, and
// brokers refuse them.
func (s *session) dropNamesakes(ctx context.Context, req *kmsg.OffsetCommitRequest) (dropped, err error) {
	if s.byID {
		return nil, nil
	}
	names := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		names[i] = t.Topic
	}
	topics, err := s.lookAt(ctx, names)
	if err != nil {
		return nil, err
	}
	found := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range topics {
		if t.Topic != nil {
			found[*t.Topic] = t
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.OffsetCommitRequestTopic) bool {
		id, known := s.ids[t.Topic]
		now := found[t.Topic]
		if !known || now.TopicID == id {
			return false
		}
		problem := kerr.ErrorForCode(now.ErrorCode) // that it is not there, or may not be described
		if problem == nil {
			problem = kerr.UnknownTopicID
		}
		dropped = errors.Join(dropped, fmt.Errorf("%s: %w", t.Topic, problem))
		return true
	})
	return dropped, nil
}

// lookAt asks any broker what topics are. One that hangs must not cost 10 s: the next one is asked.
func (s *session) lookAt(ctx context.Context, names []string) ([]kmsg.MetadataResponseTopic, error) {
	for patience := time.Second; ; patience *= 2 {
		try, stop := context.WithTimeout(ctx, patience)
		found, err := describe(try, s.cl, names...)
		hangs := try.Err() != nil && ctx.Err() == nil
		stop()
		if err == nil || !hangs {
			return found, err
		}
	}
}

// eachConfirmed calls confirmed for every partition that the response says is committed, and returns the errors of the
// others. From version 10 on, responses name topics by ID.
func eachConfirmed(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, confirmed func(place)) error {
	names := map[[16]byte]string{}
	for _, t := range req.Topics {
		names[t.TopicID] = t.Topic
	}
	var failed []error
	for _, t := range resp.Topics {
		topic := t.Topic
		if topic == "" {
			topic = names[t.TopicID]
		}
		for _, p := range t.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", placeName(topic, p.Partition), err))
				continue
			}
			confirmed(place{topic, p.Partition})
		}
	}
	return errors.Join(failed...)
}
