package natstest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/nats-io/nats.go/jetstream"
)

func TestNATSCluster_MessagesOutliveTheirLeader(t *testing.T) {
	t.Parallel()
	messagesOutliveLeader(t, StartCluster(t, 3), 1)
}

// With ONCEMILL_PROOF=1 only: the program is built first.
func TestNATSCluster_MessagesOutliveAProcessThatLedThem(t *testing.T) {
	t.Parallel()
	if os.Getenv("ONCEMILL_PROOF") != "1" {
		t.Skip("without ONCEMILL_PROOF=1")
	}
	program := testserver.BuildProgram(t, "github.com/nats-io/nats-server/v2")
	messagesOutliveLeader(t, StartClusterOfProcesses(t, 3, program), 3)
}

func messagesOutliveLeader(t *testing.T, c *Cluster, kills int) {
	js := c.JetStream()
	config := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, Replicas: 3}
	Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) { return js.CreateStream(ctx, config) })
	publish := func(text string) {
		t.Helper()
		Ask(t, "a message in the stream", func(ctx context.Context) (*jetstream.PubAck, error) {
			return js.Publish(ctx, "orders", []byte(text), jetstream.WithMsgID(text))
		})
	}
	var want []string
	for i := range kills {
		want = append(want, fmt.Sprint("before ", i), fmt.Sprint("after ", i))
		publish(want[2*i])
		start := time.Now()
		node := c.KillLeader("orders")
		if next := c.StreamLeader("orders"); next == node {
			t.Errorf("node %d leads although it was killed", node)
		}
		publish(want[2*i+1])
		t.Logf("node %d was killed; published again after %v", node, time.Since(start))
		c.Restart(node)
		c.AwaitCurrent("orders")
	}
	if got := payloads(t, js, len(want)); !slices.Equal(got, want) {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
	if len(c.URLs()) != 3 {
		t.Errorf("URLs are %q", c.URLs())
	}
}

// A replica that is current may answer with what it had before, for a moment.
func TestNATSCluster_CurrentReplicasAnswerWithTheLastMessage(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3)
	js := c.JetStream()
	config := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, Replicas: 3, AllowDirect: true}
	s := Ask(t, "a stream", func(ctx context.Context) (jetstream.Stream, error) { return js.CreateStream(ctx, config) })
	const rounds, many = 10, 1000
	for n := uint64(1); n <= rounds*many; n++ {
		if _, err := js.PublishAsync("orders", make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if n%many > 0 {
			continue
		}
		select {
		case <-js.PublishAsyncComplete(): // the client may have sent some again, behind others
		case <-time.After(testserver.WaitLimit):
			t.Fatal("some messages are not answered")
		}
		c.AwaitCurrent("orders")
		for range 5 { // any replica answers
			if m, err := s.GetLastMsgForSubject(t.Context(), "orders"); err != nil {
				t.Fatal(err)
			} else if m.Sequence != n {
				t.Fatalf("the last message is %d, want %d", m.Sequence, n)
			}
		}
	}
}

// payloads reads the stream from its beginning.
func payloads(t *testing.T, js jetstream.JetStream, n int) (all []string) {
	t.Helper()
	s := Ask(t, "the stream", func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, "orders") })
	if last := s.CachedInfo().State.LastSeq; last != uint64(n) {
		t.Errorf("the stream's last sequence is %d, want %d", last, n)
	}
	for seq := range n {
		msg := Ask(t, "a message", func(ctx context.Context) (*jetstream.RawStreamMsg, error) {
			return s.GetMsg(ctx, uint64(seq)+1)
		})
		all = append(all, string(msg.Data))
	}
	return all
}

func TestStart_SkipsWhereNoServerIsWanted(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_SERVERS", "none")
	for i, ask := range []func(testing.TB){
		func(t testing.TB) { Start(t) },
		func(t testing.TB) { StartCluster(t, 3) },
		func(t testing.TB) { StartClusterOfProcesses(t, 3, "nats-server") },
	} {
		if did := testserver.EndOf(t, ask); did != "skip" {
			t.Errorf("%d: %q, want a skip", i, did)
		}
	}
}
