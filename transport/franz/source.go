package franz

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/worker"
)

// SourceConfig configures a Source. Opts is required.
type SourceConfig struct {
	Config

	// Opts are the options of the clients: seed brokers, kgo.ConsumerGroup, TLS. Topics are not among them: Run names
	// its topic. Members of one group should all consume the same topic: give each topic a group of its own.
	Opts []kgo.Opt
}

// A Source is a consumer.Source for Kafka. Each Run has a client of its own. It is safe for concurrent use.
//
// The source cannot see when a handler in a Router starts. A delivery counts as running once it is handed over.
type Source struct {
	once     *consumer.Processor
	config   SourceConfig
	instance string                 // of kgo.InstanceID
	topic    atomic.Pointer[string] // the first that was consumed
}

var _ consumer.Source = (*Source)(nil)

// NewSource returns a source whose deliveries are guarded by once. The error names the field of the config that is
// wrong, or what is wrong with the options for kgo. It does not talk to a broker.
func NewSource(once *consumer.Processor, config SourceConfig) (*Source, error) {
	switch {
	case once == nil:
		return nil, errors.New("franz: NewSource needs a Processor")
	case config.Handler != "":
		return nil, fmt.Errorf("franz: SourceConfig.Handler is %q: leave it empty, a Router names its handlers",
			config.Handler)
	}
	s := &Source{once: once, config: config}
	w, cl, err := s.open(nil)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	if len(cl.GetConsumeTopics()) > 0 || option[bool](cl, kgo.ConsumeRegex) {
		return nil, errors.New("franz: SourceConfig.Opts has kgo.ConsumeTopics or kgo.ConsumeRegex, but the topic is " +
			"Run's to name")
	}
	if err := w.checkClient(cl); err != nil {
		return nil, err
	}
	s.instance = option[string](cl, kgo.InstanceID)
	return s, nil
}

// Processor returns what the source was made with.
func (s *Source) Processor() *consumer.Processor { return s.once }

// open returns a worker and its client. With a nil handle they only look.
func (s *Source) open(
	handle consumer.SourceHandler, topics ...string,
) (*Worker, *kgo.Client, error) {
	w, err := newWorker(s.config.Config, worker.Work{Once: s.once, Source: handle})
	if err != nil {
		return nil, nil, err
	}
	opts := append(w.Opts(), s.config.Opts...)
	if len(topics) > 0 {
		opts = append(opts, kgo.ConsumeTopics(topics...))
		if s.instance != "" {
			opts = append(opts, kgo.InstanceID(s.instance+"-"+topics[0])) // each client is a member of its own
		}
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, nil, fmt.Errorf("franz: SourceConfig.Opts: %w", err)
	}
	return w, cl, nil
}

// topics returns what a client consumes for a topic.
func (s *Source) topics(topic string) []string {
	topics := []string{topic}
	for _, r := range s.config.Retry {
		topics = append(topics, r.Topic)
	}
	return topics
}

// Check makes a client that does not join the group, and looks at topic and group: see Worker.Check.
func (s *Source) Check(ctx context.Context, topic string) error {
	if problem := topicProblem(topic); problem != "" {
		return setupError("the topic", "%s", problem)
	}
	w, cl, err := s.open(nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := w.checkClient(cl); err != nil {
		return err
	}
	return w.checkBroker(ctx, cl, s.topics(topic))
}

// Run makes a client, consumes a topic with it as Worker.Run does, and closes the client, which leaves the group. With
// kgo.InstanceID the member is called by that and the topic: "pod-0-orders". A source with Config.Retry is for one
// topic: it returns a *dedupstore.SetupError for a second one.
func (s *Source) Run(
	ctx context.Context, topic string, handle consumer.SourceHandler,
) error {
	s.topic.CompareAndSwap(nil, &topic)
	if first := *s.topic.Load(); first != topic && len(s.config.Retry) > 0 {
		return setupError("the source", "has consumed topic %q, and its retry topics hold records of that: make "+
			"another source, with retry topics of its own, for topic %q", first, topic)
	}
	w, cl, err := s.open(handle, s.topics(topic)...)
	if err != nil {
		return err
	}
	defer leave(ctx, cl)
	return w.Run(ctx, cl)
}

// leaveTimeout bounds how long a client waits for the coordinator of its group when it leaves.
const leaveTimeout = 5 * time.Second

func leave(ctx context.Context, cl *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	cl.AllowRebalance()
	_ = cl.LeaveGroupContext(ctx) // else it is a member until the session timeout
	cl.CloseAllowingRebalance()
}
