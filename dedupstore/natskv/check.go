package natskv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/natswire"
)

const noTTL = "allows no TTL of keys: with nats-server 2.11 or later, create it by natskv.Bucket, or set AllowMsgTTL " +
	"of its stream"

// Check implements [dedupstore.Checker]. It returns a [*dedupstore.SetupError] for a bucket that is missing, has no
// TTLs of keys, keeps more than one revision of a key or refuses a second one, mirrors another or is sealed, and for a
// user who may not read or write it. For a stream with other messages, see docs/nats-exactly-once.md. It writes
// nothing. It cannot see sync_interval of the servers: see the package doc.
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
	losses := s.losses(info.Config)
	return dedupstore.Report{
		Store: "nats", Version: s.js.Conn().ConnectedServerVersion(), Durability: durability(info.Config),
		Warnings: append(s.warnings(info), losses...), Losses: losses,
	}, nil
}

// look asks for the bucket's stream and takes the time of its leader. The first look warns.
func (s *Store) look(ctx context.Context) (*jetstream.StreamInfo, error) {
	bounded, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	sent := time.Now()
	stream, err := s.js.Stream(bounded, s.stream)
	came := time.Now()
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	info := stream.CachedInfo()
	problem := unfit(info.Config)
	if s.shared {
		problem = s.unfitShared(info.Config, s.js.Conn().ConnectedServerVersion(), info.Config.Metadata["_nats.ver"])
	}
	if problem != "" {
		return nil, s.setup(problem, nil)
	}
	s.config.Store(&info.Config)
	s.clock.learn(info.TimeStamp, sent, came)
	if !s.warned.Swap(true) {
		for _, w := range append(s.warnings(info), s.losses(info.Config)...) {
			s.log.WarnContext(ctx, "natskv: the bucket can lose or refuse claims", "bucket", s.stream, "warning", w)
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

// unfitShared says why a stream cannot have records beside what handlers publish, or a server not serve it.
// The versions are those of the connected one and of the stream's leader.
func (s *Store) unfitShared(c jetstream.StreamConfig, versions ...string) string {
	records := s.prefix + ".>"
	if version := slices.IndexFunc(versions, tooOld); version >= 0 {
		return fmt.Sprintf("is on nats-server %s, whose atomic batches have faults: run 2.14.3 or later, or 2.12.12 "+
			"or later of 2.12", versions[version])
	}
	switch {
	case c.Mirror != nil:
		return "is a mirror, which nobody can publish to: use the stream that it mirrors"
	case c.Sealed:
		return "is sealed: create another one"
	case !c.AllowAtomicPublish:
		return "takes no atomic batches: set AllowAtomicPublish (allow_atomic)"
	case !c.AllowMsgTTL:
		return "allows no TTL of messages, and would keep records for ever: set AllowMsgTTL (allow_msg_ttl)"
	case !c.AllowRollup || c.DenyPurge:
		return "cannot replace a record: set AllowRollup (allow_rollup_hdrs), and unset DenyPurge"
	case c.Retention == jetstream.InterestPolicy:
		return "has retention interest, which deletes records that no consumer wants: use limits, or a work queue"
	case c.SubjectDeleteMarkerTTL != 0:
		return "puts markers where messages expire, and they get between records and outputs: unset " +
			"SubjectDeleteMarkerTTL"
	case c.DiscardNewPerSubject:
		return "refuses a second revision of a record, and so each outcome: unset DiscardNewPerSubject"
	case c.NoAck:
		return "acknowledges nothing: unset NoAck"
	case !has(c.Subjects, s.prefix+".=.=.=.="), !has(c.Subjects, s.prefix+".scopes.=.="):
		return fmt.Sprintf("has the subjects %q, and not %q for the records: add it, or change Config.Subject",
			c.Subjects,
			records)
	case c.SubjectTransform != nil && natswire.Overlaps(cmp.Or(c.SubjectTransform.Source, ">"), records):
		return fmt.Sprintf("changes subjects of records: let its SubjectTransform have another source than %q",
			c.SubjectTransform.Source)
	case c.SubjectTransform != nil && natswire.Overlaps(template(c.SubjectTransform.Destination), records):
		return fmt.Sprintf("makes records of other messages: let its SubjectTransform have another destination than %q",
			c.SubjectTransform.Destination)
	case c.MaxMsgsPerSubject == 1:
		return "keeps one message of a subject, and so one output of a run: unset MaxMsgsPerSubject"
	}
	for _, source := range c.Sources {
		if has(sourced(source), records) {
			return fmt.Sprintf("gets messages of stream %q into the subjects of records: give that source a "+
				"FilterSubject, or transforms, that leave out %q", source.Name, records)
		}
	}
	return ""
}

// sourced are patterns of the subjects that messages of a source have in the stream.
func sourced(s *jetstream.StreamSource) (into []string) {
	for _, t := range s.SubjectTransforms {
		into = append(into, template(cmp.Or(t.Destination, t.Source)))
	}
	if into == nil {
		into = []string{cmp.Or(s.FilterSubject, ">")}
	}
	return into
}

// template is the pattern of the subjects that a destination of a transform makes.
func template(destination string) string {
	tokens := strings.Split(destination, ".")
	for i, token := range tokens {
		switch name := strings.ToLower(token); {
		case strings.Contains(name, "{{") && (strings.Contains(name, "split") || strings.Contains(name, "slice")):
			return strings.Join(append(tokens[:i], ">"), ".") // it makes any number of tokens
		case strings.ContainsAny(token, "${"):
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// tooOld reports whether batches of a server have faults: some of 2.12 and 2.14 were stored in part, or stopped it.
// What is no version is another server's, or a test's.
func tooOld(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n < 3 {
		return false
	}
	v := [3]int{major, minor, patch}
	return slices.Compare(v[:], []int{2, 14, 3}) < 0 && (minor != 12 || patch < 12)
}

func durability(c jetstream.StreamConfig) string {
	storage := "in files; what servers had not flushed (sync_interval) is lost if all of them lose power"
	if c.Storage == jetstream.MemoryStorage {
		storage = "in memory"
	}
	return fmt.Sprintf("%d replicas, %s", c.Replicas, storage)
}

// clocksApart is how much the clocks of servers may differ.
const clocksApart = time.Second

func (s *Store) kind() string {
	if s.shared {
		return "stream"
	}
	return "bucket"
}

// losses tell how records can be lost.
func (s *Store) losses(c jetstream.StreamConfig) (losses []string) {
	lose := func(format string, args ...any) {
		losses = append(losses, "the "+s.kind()+fmt.Sprintf(format, args...))
	}
	if c.Replicas < 2 {
		part := ""
		if s.shared {
			part = "; when it or the account runs out of storage in the middle of a batch, outputs may be there " +
				"without their record"
		}
		lose(" has one replica: its records are lost with the server's disk, and no claim is made while that "+
			"server is down%s; give its stream 3 replicas", part)
	}
	if s.shared && c.MaxMsgsPerSubject > 1 {
		lose(" keeps %d messages of a subject: a run that publishes more into one loses the first of them",
			c.MaxMsgsPerSubject)
	}
	if c.Storage == jetstream.MemoryStorage {
		lose(" is in memory: its records are lost when the servers that have them stop; create it with " +
			"file storage")
	}
	if c.MaxAge > 0 {
		lose(" has a MaxAge (TTL) of %v: records are forgotten after it, also if their window or lease is "+
			"longer; set it to 0, each key has its own TTL", c.MaxAge)
	}
	if c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0) {
		lose(" drops its oldest records when it is full: set Discard of its stream to new, and it refuses " +
			"what it has no room for")
	}
	return losses
}

// warnings are what works but should be changed.
func (s *Store) warnings(info *jetstream.StreamInfo) (warnings []string) {
	c := info.Config
	if first := info.State.FirstTime; info.State.Msgs > 0 && info.Created.Sub(first) > clocksApart {
		warnings = append(warnings, fmt.Sprintf("the %s was created at %s and has messages of %s: nats-server "+
			"brings those of a stream back that was deleted just before, and what their records name would not run; "+
			"unless it was restored from a backup, purge it before anything is "+
			"published", s.kind(), info.Created.Format(time.RFC3339),
			first.Format(time.RFC3339)))
	}
	if s.shared && c.Replicas < 2 && c.Storage == jetstream.FileStorage {
		warnings = append(warnings, "the stream has one replica in files: the server syncs each batch, some dozens a "+
			"second; give it 3 replicas")
	}
	if s.shared && c.Retention == jetstream.WorkQueuePolicy {
		warnings = append(warnings, fmt.Sprintf("the stream is a work queue: a consumer that acknowledges records "+
			"deletes them; give each consumer a filter that leaves out %s.>", s.prefix))
	}
	if c.MaxBytes > 0 && info.State.Bytes > uint64(c.MaxBytes)/5*4 && c.Discard == jetstream.DiscardNew {
		warnings = append(warnings, fmt.Sprintf("the %s holds %d of at most %d bytes: when it is full, claims and "+
			"outcomes are refused; raise MaxBytes", s.kind(), info.State.Bytes, c.MaxBytes))
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
			warnings = append(warnings, fmt.Sprintf("replicas of the %s are away or behind: %q", s.kind(), away))
		}
	}
	return warnings
}
