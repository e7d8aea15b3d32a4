package stocknats

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// What goes to a message's reply subject (NATS ADR-15): acks of the protocol of JetStream.
const (
	ackBody  = "+ACK"
	termBody = "+TERM"
	workBody = "+WPI"
)

func nakBody(wait time.Duration) string {
	if wait == terminate {
		return termBody
	}
	return fmt.Sprintf(`-NAK {"delay": %d}`, wait.Nanoseconds())
}

// keepAlive tells the server that the message is being worked on, at once and then every third of its ack deadline,
// until ctx ends.
func keepAlive(ctx context.Context, nc *nats.Conn, reply string, ackWait time.Duration) {
	t := time.NewTicker(max(ackWait/3, time.Millisecond))
	defer t.Stop()
	for {
		_ = nc.Publish(reply, []byte(workBody)) // a connection that is down is said aloud by what comes after
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}
