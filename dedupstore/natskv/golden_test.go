package natskv

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/internal/goldentest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// A file has subjects of a bucket, and what was published to them.
func TestRecord_OfReleasedVersionsIsReadAndContinued(t *testing.T) {
	t.Parallel()
	bucket := func(t *testing.T) (*Store, jetstream.JetStream) {
		js := natstest.Start(t).JetStream()
		return newStore(t, js, Bucket("oncemill", 1)), js
	}
	goldentest.Run(t, func(t *testing.T) []byte {
		s, js := bucket(t)
		goldentest.Write(t, s)
		stream := natstest.Ask(t, "the bucket", func(ctx context.Context) (jetstream.Stream, error) {
			return js.Stream(ctx, s.stream)
		})
		var lines strings.Builder
		for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
			if msg, err := stream.GetMsg(t.Context(), seq); err == nil { // others have been written again
				lines.WriteString(goldentest.Line(msg.Subject, string(msg.Data)))
			}
		}
		return []byte(lines.String())
	}, func(t *testing.T, content []byte) {
		s, js := bucket(t)
		for _, line := range goldentest.Lines(t, content) {
			if _, err := js.Publish(t.Context(), line[0], []byte(line[1])); err != nil {
				t.Fatal(err)
			}
		}
		goldentest.Read(t, s)
	})
}
