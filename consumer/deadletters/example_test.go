package deadletters_test

import (
	"context"
	"fmt"
	"log"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/producer"
)

// The newest letters of a topic whose outcome is unknown.
func ExampleSource() {
	var source deadletters.Source = topic() // or natsjs.NewDeadLetters(js, "dead.billing", natsjs.DeadLettersConfig{})
	page, err := source.Page(context.Background(), "", 10, func(l *deadletters.Letter) bool {
		return l.Get(producer.HeaderOutcome) == "unknown"
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range page.Letters {
		fmt.Println(l.Original(), "at", l.Position+":", l.Get(producer.HeaderReason))
	}
	// Output: order-2 at 2: no answer from the bank
}

func topic() *consumertest.Letters {
	l := &consumertest.Letters{}
	key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "order-1"}
	l.Add(consumertest.DeadLetter(key, 7, "card refused"))
	key.ID = "order-2"
	unknown := consumertest.DeadLetter(key, 8, "no answer from the bank")
	unknown.Header[producer.HeaderOutcome] = "unknown"
	l.Add(unknown)
	return l
}
