package stocknats

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Without a leader the client reports both by turns, with short requests each second.
func TestSays_ErrorsThatTakeTurnsAreLoggedOnceEach(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	say := gatedConsumer{log: slog.New(slog.NewTextHandler(&log, nil))}.says()
	for range 10 {
		say(nil, nats.ErrNoResponders)
		say(nil, jetstream.ErrNoHeartbeat)
	}
	if n := strings.Count(log.String(), "trouble"); n != 2 {
		t.Errorf("%d lines, want 2:\n%s", n, log.String())
	}
}
