package oncewatermill

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/internal/isnil"
)

// AddHandler adds a guarded handler to a Router, whose messages come from a topic of a source. The name is the
// handler's in the Router and that of its records: under another name everything within Policy.Window runs again. What
// the handler returns is stored with its outcome, and the Router publishes it to publishTopic. See [Middleware] and
// [NewSubscriber] for what is promised.
//
// Middlewares of the Router run outside of the guard. Add what repeats or ends the handler to the handler that
// AddHandler returns: that runs inside. Over an inbox, and under a policy that parks, let nothing repeat it.
//
// AddHandler panics, as Router.AddHandler does, if the arguments cannot work: an unusable or repeated name, or a source
// that was made with another Processor than once.
func AddHandler(router *message.Router, once *consumer.Processor, name, topic string, source consumer.Source,
	publishTopic string, publisher message.Publisher, handle message.HandlerFunc) *message.Handler {
	h := router.AddHandler(name, topic, subscriberOf(once, source, name), publishTopic, publisher, handle)
	h.AddMiddleware(Middleware(once))
	return h
}

// AddConsumerHandler is AddHandler for a handler that publishes nothing.
func AddConsumerHandler(router *message.Router, once *consumer.Processor, name, topic string, source consumer.Source,
	handle message.NoPublishHandlerFunc) *message.Handler {
	h := router.AddConsumerHandler(name, topic, subscriberOf(once, source, name), handle)
	h.AddMiddleware(Middleware(once))
	return h
}

func subscriberOf(once *consumer.Processor, source consumer.Source, name string) message.Subscriber {
	sub, err := NewSubscriber(source, name)
	if err != nil {
		panic(err.Error())
	}
	if isnil.Nil(once) || source.Processor() != once {
		panic(fmt.Sprintf("oncewatermill: handler %q has another Processor than its source was made with", name))
	}
	return sub
}
