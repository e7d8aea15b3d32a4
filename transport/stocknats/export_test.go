package stocknats

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// LookEvery sets how often subscriptions look at their consumers.
func LookEvery(s message.Subscriber, every time.Duration) { s.(*subscriber).lookEvery = every }
