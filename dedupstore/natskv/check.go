package natskv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
)

const noTTL = "allows no TTL of keys: with nats-server 2.11 or later, create it by natskv.Bucket, or set AllowMsgTTL " +
	"of its stream"

// Check implements [dedupstore.Checker]. It returns a [*dedupstore.SetupError] for a bucket that is missing, has no
// TTLs of keys, keeps more than one revision of a key or refuses a second one, mirrors another or is sealed, and for a
// user who may not read or write it. It writes nothing. It cannot see sync_interval of the servers: see the package
// doc.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	info, err := s.look(ctx)
	if err != nil {
		return dedupstore.Report{}, err
	}
	probe := dedupstore.Key{Tenant: "oncemill", Group: "check", Handler: "check", ID: "check"}
	if _, err := s.read(ctx, probe); err != nil {
		return dedupstore.Report{}, err
	}
	// The message names another stream than the one that gets it. So the server looks at the rights, and then refuses
	// it.
	_, err = s.publish(ctx, s.subject(probe), nil, 0, nats.Header{jetstream.ExpectedStreamHeader: {"none"}})
	if api := (*jetstream.APIError)(nil); err != nil && !errors.As(err, &api) {
		return dedupstore.Report{}, s.failed(ctx, err)
	}
	losses := losses(info.Config)
	return dedupstore.Report{
		Store: "nats", Version: s.js.Conn().ConnectedServerVersion(), Durability: durability(info.Config),
		Warnings: append(warnings(info), losses...), Losses: losses,
	}, nil
}

// look asks for the bucket's stream and takes the time of its leader. The first look warns.
func (s *Store) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	sent := time.Now()
	stream, err := s.js.Stream(bounded, s.stream())
	came := time.Now()
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	info := stream.CachedInfo()
	if problem := unfit(info.Config); problem != "" {
		return nil, s.setup(problem, nil)
	}
	s.clock.learn(info.TimeStamp, sent, came)
	if !s.warned.Swap(true) {
		for _, w := range append(warnings(info), losses(info.Config)...) {
			s.log.WarnContext(ctx, "natskv: the bucket can lose or refuse claims", "bucket", s.bucket, "warning", w)
		}
	}
	return info, nil
}

// unfit says why a bucket cannot serve.
func unfit(c jetstream.StreamConfig) string {
	switch {
	case c.Mirror != nil:
		return "mirrors another one: use that"
	case c.Sealed:
		return "is sealed: create another one"
	case !c.AllowMsgTTL:
		return noTTL
	case c.MaxMsgsPerSubject != 1:
		return fmt.Sprintf("keeps %d revisions of a key, and an old one would come back when the last one's time has "+
			"come: create it with a History of 1", c.MaxMsgsPerSubject)
	case c.DiscardNewPerSubject:
		return "refuses a second revision of a key, and so each outcome: unset DiscardNewPerSubject of its stream"
	}
	return ""
}

func durability(c jetstream.StreamConfig) string {
	storage := "in files; what servers had not flushed (sync_interval) is lost if all of them lose power"
	if c.Storage == jetstream.MemoryStorage {
		storage = "in memory"
	}
	return fmt.Sprintf("%d replicas, %s", c.Replicas, storage)
}

// losses tell how records can be lost.
func losses(c jetstream.StreamConfig) (losses []string) {
	lose := func(format string, args ...any) { losses = append(losses, fmt.Sprintf(format, args...)) }
	if c.Replicas < 2 {
		lose("the bucket has one replica: its records are lost with the server's disk, and no claim is made while " +
			"that server is down; give its stream 3 replicas")
	}
	if c.Storage == jetstream.MemoryStorage {
		lose("the bucket is in memory: its records are lost when the servers that have them stop; create it with " +
			"file storage")
	}
	if c.MaxAge > 0 {
		lose("the bucket has a MaxAge (TTL) of %v: records are forgotten after it, also if their window or lease is "+
			"longer; set it to 0, each key has its own TTL", c.MaxAge)
	}
	if c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0) {
		lose("the bucket drops its oldest records when it is full: set Discard of its stream to new, and it refuses " +
			"what it has no room for")
	}
	return losses
}

// warnings are what works but should be changed.
func warnings(info *jetstream.StreamInfo) (warnings []string) {
	c := info.Config
	if c.MaxBytes > 0 && info.State.Bytes > uint64(c.MaxBytes)/5*4 && c.Discard == jetstream.DiscardNew {
		warnings = append(warnings, fmt.Sprintf("the bucket holds %d of at most %d bytes: when it is full, claims and "+
			"outcomes are refused; raise MaxBytes", info.State.Bytes, c.MaxBytes))
	}
	if info.Cluster != nil {
		var away []string
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current {
				away = append(away, r.Name)
			}
		}
		slices.Sort(away)
		if len(away) > 0 {
			warnings = append(warnings, fmt.Sprintf("replicas of the bucket are away or behind: %q", away))
		}
	}
	return warnings
}
