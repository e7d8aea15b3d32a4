package franz

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/internal/pace"
)

// errGeneration keeps a commit from being sent by another membership than the one that its offsets belong to.
var errGeneration = errors.New("franz: the group was rebalanced while the commit was being prepared")

// committer commits what is settled.
type committer struct {
	s *session

	mu   sync.Mutex // held from reading what is settled until the broker has answered, and its outcome is noted
	byID bool       // the broker's last answer to a commit named topics by ID
}

// regularly commits what is settled, until ctx ends. A commit that fails is made up for by the next.
func (c *committer) regularly(ctx context.Context) {
	s := c.s
	tick := time.NewTicker(s.config.CommitEvery)
	defer tick.Stop()
	var failure pace.Limiter
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := c.commit(ctx); err != nil && ctx.Err() == nil {
			if refused := refusal(s.group, "", err); refused != nil {
				s.fail(refused)
				return
			}
			if failure.Due(sayEvery) {
				s.log.WarnContext(ctx, "franz: commit failed, the next one that succeeds makes up for it",
					"group", s.group, "error", err)
			}
		}
		for _, p := range s.poller.all() {
			p.warnOfGap(ctx)
		}
	}
}

func (c *committer) commit(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Cancelled, a commit could overtake the next one on the way to the broker.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.s.rebalance)
	defer cancel()
	return c.commitLocked(ctx, c.s.poller.all)
}

// goneFor is for how long the last commit is tried if the only trouble is that topics are gone. A new topic is unknown
// to the broker for a moment too.
const goneFor = 5 * time.Second

// finally commits everything that is settled, and tries again until it is confirmed, or cannot be, or ctx ends.
func (c *committer) finally(ctx context.Context) error {
	s := c.s
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := c.commitLocked(ctx, s.poller.all) // without those that a rebalance has taken meanwhile
		if err == nil {
			return s.poller.givenUp()
		}
		c.mu.Unlock() // for a revocation
		pace.Sleep(ctx, wait)
		c.mu.Lock()
		if ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) || refusal(s.group, "", err) != nil ||
			gone(err) && time.Since(began) > goneFor {
			return unconfirmed(s.group, err)
		}
	}
}

// givenUp returns ErrUnconfirmed if a rebalance has taken something in the drain that was settled and is not confirmed.
func (f *poller) givenUp() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unconfirmed != nil {
		return unconfirmed(f.s.group, f.unconfirmed)
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
func (c *committer) commitLocked(ctx context.Context, partitions func() []*partition) error {
	s := c.s
	member, generation := s.cl.GroupMetadata() // before the partitions: theirs, or an older one, which is refused
	owners := map[partitionID]*partition{}
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
		owners[p.partitionID] = p
	}
	if len(offsets) == 0 {
		return nil
	}
	var failed, namesakes error
	checked := kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) (err error) {
		if req.MemberID != member || req.Generation != generation {
			return errGeneration // these partitions may have been lost and found
		}
		namesakes, err = c.dropNamesakes(ctx, req)
		return err
	})
	s.cl.CommitOffsetsSync(checked, offsets, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest,
		resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			failed = err
			return
		}
		c.byID = resp.Version >= 10
		failed = eachConfirmed(req, resp, func(id partitionID) { owners[id].confirm(offsets[id.topic][id.number]) })
	})
	if namesakes != nil {
		return errors.Join(failed, namesakes)
	}
	return failed
}

// dropNamesakes takes topics out of a commit that were deleted and made again since they were consumed. Offsets of the
// old topic would pass over records of the new one. Since Kafka 4.2, commits name topics by ID, and brokers refuse the
// old ones.
func (c *committer) dropNamesakes(ctx context.Context, req *kmsg.OffsetCommitRequest) (dropped, err error) {
	if c.byID {
		return nil, nil
	}
	names := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		names[i] = t.Topic
	}
	all, err := describe(ctx, c.s.cl, names...)
	if err != nil {
		return nil, err
	}
	found := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range all.Topics {
		if t.Topic != nil {
			found[*t.Topic] = t
		}
	}
	f := &c.s.poller
	f.mu.Lock()
	defer f.mu.Unlock()
	req.Topics = slices.DeleteFunc(req.Topics, func(t kmsg.OffsetCommitRequestTopic) bool {
		id, known := f.ids[t.Topic]
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

// eachConfirmed calls confirmed for every partition that the response says is committed, and returns the errors of the
// others. From version 10 on, responses name topics by ID.
func eachConfirmed(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, confirmed func(partitionID)) error {
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
				failed = append(failed, fmt.Errorf("%s: %w", partitionID{topic, p.Partition}, err))
				continue
			}
			confirmed(partitionID{topic, p.Partition})
		}
	}
	return errors.Join(failed...)
}
