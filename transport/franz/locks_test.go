package franz

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill/internal/contexts"
)

// sharing polls n records of a fake cluster as a member of a share group, and returns a session that was not begun.
func sharing(t *testing.T, n int, hooks func(*ShareWorker) kgo.Hook) (*kfake.Cluster, *shareSession, []*kgo.Record) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "later"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cluster.SetGroupConfigs("sharers", map[string]string{"share.auto.offset.reset": "earliest"})
	config := ShareConfig{RetryTopic: "later", Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	w := &ShareWorker{config: config}
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ShareGroup("sharers"), kgo.ConsumeTopics("orders", "later"),
		kgo.ShareMaxRecordsStrict(), kgo.ShareAckCallback(w.onAcked), kgo.WithHooks(hooks(w)), kgo.ProducerLinger(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	for range n {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("o")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	s := newShareSession(config, &handling{watching: newWatching("sharers", config.Logger), cl: cl},
		shareRules{lock: 10 * time.Second, limit: 5, renewal: time.Second})
	if err := w.client.begin(cl, s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var records []*kgo.Record
	for len(records) < n && ctx.Err() == nil {
		polled := cl.PollFetches(ctx).Records()
		if len(records) == 0 && len(polled) > 0 && s.prove(ctx, polled) != nil {
			return cluster, s, nil
		}
		for _, rec := range polled {
			show(rec)
		}
		records = append(records, polled...)
	}
	if len(records) != n {
		t.Fatalf("%d records, want %d", len(records), n)
	}
	s.locks.add(records)
	return cluster, s, records
}

func veiling(w *ShareWorker) kgo.Hook { return shareHooks{w} }

// An open hook lets the client see what it hands out, as if the veil did not work.
type openHook struct{}

func (openHook) OnFetchRecordBuffered(rec *kgo.Record) {
	v := contexts.Hide(rec.Context)
	v.Lift()
	rec.Context = v
}

func TestShareSession_ClientThatWouldAcceptByItselfIsNoticed(t *testing.T) {
	t.Parallel()
	if _, s, records := sharing(t, 3, func(*ShareWorker) kgo.Hook { return openHook{} }); records != nil || s.proven {
		t.Error("the client knows its records, and nobody notices")
	}
	if _, s, records := sharing(t, 3, veiling); records == nil || !s.proven {
		t.Error("the client does not know its records, and is refused")
	}
}

// The broker refuses all of a partition together, and does not say which record has lost its lock.
func TestLocks_AfterARefusalNothingOfThePartitionIsSaid(t *testing.T) {
	t.Parallel()
	cluster, s, records := sharing(t, 3, veiling)
	var asked int
	cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked++
		return acknowledged(kreq.(*kmsg.ShareAcknowledgeRequest), kerr.InvalidRecordState.Code), nil, true
	})
	for range 2 {
		s.locks.prolong(t.Context())
	}
	if !s.locks.hasLost() {
		t.Error("nobody is told that a lock is lost")
	}
	s.locks.forgive()
	for _, rec := range records {
		s.locks.settle(rec, kgo.AckAccept)
	}
	if err := s.locks.confirm(t.Context(), time.Second); err != nil || asked != 1 {
		t.Errorf("%v, and %d requests, want one: no lock there is known to be held", err, asked)
	}
}

// Beside a renewal it could be sent twice, and the second be refused.
func TestLocks_AcknowledgementWaitsForTheEndOfARenewal(t *testing.T) {
	t.Parallel()
	cluster, s, records := sharing(t, 3, veiling)
	answer, renewing := make(chan struct{}), make(chan struct{}, 10)
	var kinds [][]int8
	cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		req := kreq.(*kmsg.ShareAcknowledgeRequest)
		for _, topic := range req.Topics { // none when the client leaves
			for _, b := range topic.Partitions[0].AcknowledgementBatches {
				kinds = append(kinds, b.AcknowledgeTypes)
			}
		}
		renewing <- struct{}{}
		cluster.SleepControl(func() { <-answer })
		return acknowledged(req, 0), nil, true
	})
	prolonged := make(chan struct{})
	go func() {
		defer close(prolonged)
		s.locks.prolong(t.Context())
	}()
	<-renewing
	for _, rec := range records {
		s.locks.settle(rec, kgo.AckAccept)
	}
	close(answer)
	<-prolonged
	if err := s.locks.confirm(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	for i, types := range kinds {
		for _, kind := range types {
			if want := map[bool]kgo.AckStatus{true: kgo.AckRenew, false: kgo.AckAccept}[i == 0]; kind != int8(want) {
				t.Errorf("request %d says %v, want %d", i, types, want)
			}
		}
	}
	if len(kinds) != 2 {
		t.Errorf("%d requests, want a renewal and then the acknowledgements", len(kinds))
	}
}

func TestLocks_AcknowledgementThatIsPutOffIsSaidAgainAtTheEnd(t *testing.T) {
	t.Parallel()
	cluster, s, records := sharing(t, 3, veiling)
	var asked int
	cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked++
		var code int16
		if asked == 1 { // as while the coordinator moves
			code = kerr.CoordinatorNotAvailable.Code
		}
		return acknowledged(kreq.(*kmsg.ShareAcknowledgeRequest), code), nil, true
	})
	for _, rec := range records {
		s.locks.settle(rec, kgo.AckAccept)
	}
	if err := s.locks.confirm(t.Context(), 10*time.Second); err != nil || asked < 2 {
		t.Errorf("%v, after %d requests, want it to be said again", err, asked)
	}
}

func TestLocks_RefusedAcknowledgementIsRememberedOverRenewals(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"before": false, "amid the renewal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, s, records := sharing(t, 3, veiling)
			answer := make(chan struct{})
			if !late {
				close(answer)
			}
			code := kerr.InvalidRecordState.Code
			cluster.ControlKey(int16(kmsg.ShareAcknowledge), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				if code != 0 {
					cluster.SleepControl(func() { <-answer })
				}
				resp := acknowledged(kreq.(*kmsg.ShareAcknowledgeRequest), code)
				code = 0
				return resp, nil, true
			})
			s.locks.settle(records[0], kgo.AckAccept)
			if late {
				time.AfterFunc(s.locks.every*3/4, func() { close(answer) }) // it is waited for half of it
			}
			s.locks.prolong(t.Context()) // of the others
			if err := s.locks.confirm(t.Context(), 10*time.Second); !errors.Is(err, kerr.InvalidRecordState) {
				t.Errorf("confirmed with %v, want %v", err, kerr.InvalidRecordState)
			}
		})
	}
}

// acknowledged answers a request, for all of it with a code; 0 is a success.
func acknowledged(req *kmsg.ShareAcknowledgeRequest, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ShareAcknowledgeResponse)
	for _, topic := range req.Topics {
		answer := kmsg.NewShareAcknowledgeResponseTopic()
		answer.TopicID = topic.TopicID
		for _, p := range topic.Partitions {
			part := kmsg.NewShareAcknowledgeResponseTopicPartition()
			part.Partition = p.Partition
			part.CurrentLeader.LeaderID, part.CurrentLeader.LeaderEpoch = -1, -1
			part.ErrorCode = code
			answer.Partitions = append(answer.Partitions, part)
		}
		resp.Topics = append(resp.Topics, answer)
	}
	return resp
}
