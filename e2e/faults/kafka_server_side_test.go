package faults_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/transport/franz"
)

// Members whose partitions the broker assigns (KIP-848) report as often as the broker says. It puts them out after its
// own session timeout, not after kgo's.
const serverSideHeartbeat = kafkaSession / 5

// The broker assigns the partitions, and everything is as with members that do it among themselves. Full: 12 rounds of
// members 3, 2, 1, 3, where one leaves, one is killed and one is cut off. 12 rounds of members that leave. Both with
// kfake, too. 6 restarts of a static member. A group that moves 6 times there and back.
func TestKafka_ServerSideBalancerLosesNothingAndRepeatsOnlyWhatIsExplained(t *testing.T) {
	t.Parallel()
	broker := serverSideKafka(t)
	for name, test := range map[string]func(*testing.T, kafka){
		"members come and go":          func(t *testing.T, k kafka) { comeAndGo(t, k, franz.PerKey, true) },
		"members leave":                func(t *testing.T, k kafka) { leaveInTurn(t, k, true) },
		"static members are restarted": restartServerSide,
		"groups move member by member": moveThereAndBack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, broker)
		})
	}
	for name, test := range full(map[string]func(*testing.T, kafka){
		"members come and go, kfake": func(t *testing.T, k kafka) { comeAndGo(t, k, franz.PerPartition, true) },
		"members leave, kfake":       func(t *testing.T, k kafka) { leaveInTurn(t, k, true) },
	}, nil) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fakeKafka(t, kfake.BrokerConfigs(map[string]string{
				"group.consumer.session.timeout.ms":    millis(kafkaSession),
				"group.consumer.heartbeat.interval.ms": millis(serverSideHeartbeat),
			})))
		})
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// serverSideKafka is a broker of the test's own.
func serverSideKafka(t *testing.T) kafka {
	t.Helper()
	return kafka{addr: kafkatest.Start(t,
		"group.consumer.min.session.timeout.ms="+millis(kafkaSession),
		"group.consumer.session.timeout.ms="+millis(kafkaSession),
		"group.consumer.min.heartbeat.interval.ms="+millis(serverSideHeartbeat),
		"group.consumer.heartbeat.interval.ms="+millis(serverSideHeartbeat),
	).Addr}
}

// moveThereAndBack restarts the members of a group one after the other, for the new protocol and then back: in between it
// has one of each kind.
func moveThereAndBack(t *testing.T, k kafka) {
	r := newKafkaRig(t, k, kafkaSetup{
		partitions: 6, rate: 300, lease: 3 * time.Second, fails: flaky, config: franz.Config{Order: franz.PerKey, MaxInFlight: 32},
		work: func(context.Context, oncemill.Run) { lasts(rand.N(20 * time.Millisecond)) },
	})
	a, b := r.join(), r.join()
	for range full(6, 1) {
		for _, serverSide := range []bool{true, false} {
			r.seated(2)
			r.progress(100)
			a.leave()
			a = r.join(balancedBy(serverSide)...)
			r.wantBothKinds()
			r.progress(100)
			b.leave()
			b = r.join(balancedBy(serverSide)...)
			r.seated(2)
			r.wantProtocol(serverSide)
		}
	}
	r.progress(100)
	r.finish().MustExplain(t)
}

// wantBothKinds waits until the group has a member of each protocol, with as many partitions.
func (r *kafkaRig) wantBothKinds() {
	r.t.Helper()
	until(r.t, "a member of each protocol", func() bool {
		classic := 0
		for _, s := range r.seated(2) {
			if s.classic {
				classic++
			}
		}
		return classic == 1
	})
}

// restartServerSide restarts a static member. With kgo v1.22.2 it gains nothing by being one. Its client leaves without
// its name, which the broker refuses. Its partitions rest until the session timeout, nobody takes its place meanwhile,
// and then there are two rebalances. If this fails with a later kgo, change a row of docs/brokers.md.
func restartServerSide(t *testing.T, k kafka) {
	const session = 3 * time.Second
	setup := staticSetup(10 * time.Second)
	setup.opts = balancedBy(true)
	r := newKafkaRig(t, k, setup)
	r.setSession(session)
	stays, goes := r.joinAs("pod-0"), r.joinAs("pod-1")
	for range full(6, 1) {
		was := r.seated(2)["pod-1"]
		first := generation(t, stays, goes)
		r.progress(50)
		goes.stop()
		<-goes.done
		if err := goes.cl.LeaveGroupContext(t.Context()); !errors.Is(err, kerr.InvalidRequest) {
			t.Errorf("a static member has left with %v, want what the broker says to a request without an instance ID", err)
		}
		gone := time.Now() // its last heartbeat is not older than an interval
		goes.leave()
		goes = r.joinAs("pod-1")
		r.takesOver("pod-1", was)
		if away := time.Since(gone); away < session/2 {
			t.Errorf("the member was let in again after %v, want the session timeout, %v, to be waited for", away, session)
		}
		r.seated(2)
		if now := generation(t, stays, goes); now == first {
			t.Error("there was no rebalance")
		}
	}
	if stays.err != nil {
		t.Errorf("the member that stayed ended with %v", stays.err)
	}
	r.finish().MustExplain(t)
}

// setSession sets the session timeout of the group's members.
func (r *kafkaRig) setSession(d time.Duration) {
	r.t.Helper()
	req, resource, config := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource(), kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	config.Name, config.Value = "consumer.session.timeout.ms", kmsg.StringPtr(millis(d))
	resource.ResourceType, resource.ResourceName = kmsg.ConfigResourceTypeGroupConfig, r.group
	resource.Configs = append(resource.Configs, config)
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(r.t.Context(), r.source)
	if err != nil {
		r.t.Fatal(err)
	}
	if code := resp.Resources[0].ErrorCode; code != 0 {
		r.t.Fatalf("session timeout of the group: error %d", code)
	}
}
