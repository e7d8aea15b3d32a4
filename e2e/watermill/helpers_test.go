package watermill_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/transport/oncewatermill"
)

// Nothing that the tests start outlives them, except for what Watermill's suite does not wait for itself.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // they wait most of the time
		panic(err)
	}
	const multiplier = "github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe."
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction(multiplier+"func2"), goleak.IgnoreAnyFunction(multiplier+"func3"))
}

// proof says whether time does not matter.
var proof = os.Getenv("ONCEMILL_PROOF") == "1"

// patience bounds every wait for something that must come.
const waitLimit = 2 * time.Minute

// until polls for a condition.
func until(t testing.TB, what string, met func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(waitLimit); !met(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", waitLimit, what)
		}
	}
}

// subscriber makes a Watermill Subscriber over a source.
func subscriber(t testing.TB, source consumer.Source) message.Subscriber {
	t.Helper()
	sub, err := oncewatermill.NewSubscriber(source, "charge")
	if err != nil {
		t.Fatal(err)
	}
	return sub
}
