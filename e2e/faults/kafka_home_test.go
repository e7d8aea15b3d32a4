package faults_test

import (
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/franz"
)

// A KafkaHome is the ledger, for members in processes of their own: they ask it as their store, and tell it their
// effects. The books have what a process did, however the process ends. (Package net/rpc wants exported names.)
type KafkaHome struct{ r *kafkaRig }

func init() {
	gob.Register(dedupstore.Finish{})
	gob.Register(dedupstore.Release{})
	gob.Register(dedupstore.Published{})
}

// A KafkaSettle is a call of Settle, or of Extend.
type KafkaSettle struct {
	Claim      dedupstore.Claim
	Settlement dedupstore.Settlement
	Lease      time.Duration
}

// A KafkaLost says whether the store answered ErrClaimLost, which package rpc would turn into a text.
type KafkaLost bool

func (l *KafkaLost) take(err error) error {
	if errors.Is(err, dedupstore.ErrClaimLost) {
		*l = true
		return nil
	}
	return err
}

// Claim is Store.Claim.
func (h *KafkaHome) Claim(q dedupstore.Request, a *dedupstore.Answer) (err error) {
	*a, err = dedupstore.ClaimOne(context.Background(), h.r, q)
	return err
}

// Extend is Store.Extend.
func (h *KafkaHome) Extend(q KafkaSettle, lost *KafkaLost) error {
	return lost.take(dedupstore.ExtendOne(context.Background(), h.r, dedupstore.Extension{
		Claim: q.Claim, Lease: q.Lease, Started: true,
	}))
}

// Settle is Store.Settle.
func (h *KafkaHome) Settle(q KafkaSettle, lost *KafkaLost) error {
	return lost.take(dedupstore.SettleOne(context.Background(), h.r, q.Claim, q.Settlement))
}

// Publish takes dead letters.
func (h *KafkaHome) Publish(q []producer.Message, _ *KafkaLost) error {
	return h.r.Publish(context.Background(), q...)
}

// Does notes an effect.
func (h *KafkaHome) Does(run oncemill.Run, _ *KafkaLost) error {
	h.r.Does(run)
	return nil
}

// serve lets processes in, until the test ends.
func (r *kafkaRig) serve() (addr string) {
	r.t.Helper()
	server := rpc.NewServer()
	if err := server.RegisterName("Home", &KafkaHome{r}); err != nil {
		r.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	var conns sync.WaitGroup
	r.t.Cleanup(func() { // after the processes have ended, and with them their connections
		l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { server.ServeConn(conn) })
		}
	})
	return l.Addr().String()
}

// A kafkaChild says what a member in a process of its own does.
type kafkaChild struct {
	Broker, Group, Topic, Home string

	Lease    time.Duration
	Attempts int
	Order    franz.Order // of franz.Config, as the next two
	Window   int
	Instance string
	Flaky    bool
	Work     time.Duration // after each effect

	Session    time.Duration // 0: kafkaSession
	ServerSide bool          // kgo.ServerSideBalancer

	Poison string // the ID at which the process ends, after a pause in which the others finish
	Exit   bool   // with os.Exit instead of SIGKILL
	Hasty  bool   // without the pause
	Batch  int    // records of a batch; zero: the handler gets one
	Linger bool   // handlers end only after SIGTERM
}

// spawn starts a member in a process of its own.
func (r *kafkaRig) spawn(home string, c kafkaChild) *testserver.Process {
	r.t.Helper()
	c.Broker, c.Group, c.Topic, c.Home, c.Lease, c.Attempts = r.at.addr, r.group, r.topic, home, r.lease, r.attempts
	args, err := json.Marshal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := testserver.StartProgram(r.t.TempDir(), self, "-test.run=^TestKafkaChild$", "-test.timeout=10m", "--", kafkaChildWord, string(args))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Kill() })
	return p
}

// kafkaChildWord tells a process that it is one of spawn's.
const kafkaChildWord = "kafka-child"

// TestKafkaChild is no test, but what the processes of spawn do: they are a member until SIGTERM. Then, as in every
// process of these tests, no goroutine may be left.
func TestKafkaChild(t *testing.T) {
	if flag.Arg(0) != kafkaChildWord {
		return
	}
	var c kafkaChild
	if err := json.Unmarshal([]byte(flag.Arg(1)), &c); err != nil {
		t.Fatal(err)
	}
	rpcs, err := rpc.Dial("tcp", c.Home)
	if err != nil {
		t.Fatal(err)
	}
	defer rpcs.Close()
	home := &remoteHome{rpcs}
	once, err := consumer.New(home, kafkaConsumer(home, c.Lease, c.Attempts))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	config := franz.Config{
		Handler: "charge", Order: c.Order, MaxInFlight: c.Window, Grace: kafkaGrace,
		Logger: slog.New(slog.DiscardHandler),
	}
	handle := c.handler(home, ctx.Done())
	w, err := franz.NewWorker(once, func(ctx context.Context, rec *kgo.Record) error {
		return handle(ctx, oncemill.FromContext(ctx), rec)
	}, config)
	if c.Batch > 0 {
		w, err = franz.NewBatchWorker(once, func(ctx context.Context, records []*kgo.Record) []error {
			errs := make([]error, len(records))
			for i, run := range oncemill.RunsFromContext(ctx) {
				errs[i] = handle(ctx, run, records[i])
			}
			return errs
		}, franz.BatchConfig{Config: config, MaxBatch: c.Batch})
	}
	if err != nil {
		t.Fatal(err)
	}
	opts := append(w.Opts(), kafkaMemberOpts(c.Broker, c.Group, c.Topic)...)
	if c.Session > 0 {
		opts = append(opts, kgo.SessionTimeout(c.Session))
	}
	if c.Instance != "" {
		opts = append(opts, kgo.InstanceID(c.Instance))
	}
	if c.ServerSide {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.CloseAllowingRebalance()
	if err := w.Run(ctx, cl); err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func (c kafkaChild) handler(
	home *remoteHome, ending <-chan struct{},
) func(context.Context, oncemill.Run, *kgo.Record) error {
	return func(ctx context.Context, run oncemill.Run, record *kgo.Record) error {
		if c.Flaky {
			if err := flaky(); err != nil {
				return err
			}
		}
		if err := home.call(ctx, "Home.Does", run, new(KafkaLost)); err != nil {
			return err
		}
		if c.Poison != "" && string(record.Value) == c.Poison {
			c.die()
		}
		if c.Linger {
			<-ending
		}
		lasts(c.Work)
		return nil
	}
}

// die ends the process, when what is under way beside this had time to finish.
func (c kafkaChild) die() {
	if !c.Hasty {
		lasts(300 * time.Millisecond)
	}
	if c.Exit {
		os.Exit(3)
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// A remoteHome is a KafkaHome in another process.
type remoteHome struct{ *rpc.Client }

func (h *remoteHome) call(ctx context.Context, method string, q, a any) error {
	call := h.Go(method, q, a, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		return call.Error
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (h *remoteHome) Claim(ctx context.Context, requests []dedupstore.Request) []dedupstore.ClaimResult {
	return dedupstore.ClaimEach(ctx, requests, h.claimOne)
}

func (h *remoteHome) claimOne(ctx context.Context, q dedupstore.Request) (dedupstore.Answer, error) {
	a := new(dedupstore.Answer) // not shared with a call that was given up
	if err := h.call(ctx, "Home.Claim", q, a); err != nil {
		return dedupstore.Answer{}, err
	}
	return *a, nil
}

func (h *remoteHome) Extend(ctx context.Context, extensions []dedupstore.Extension) []error {
	return dedupstore.ExtendEach(ctx, extensions, h.extendOne)
}

func (h *remoteHome) extendOne(ctx context.Context, x dedupstore.Extension) error {
	c, lease := x.Claim, x.Lease

	return h.settle(ctx, "Home.Extend", KafkaSettle{Claim: c, Lease: lease})
}

func (h *remoteHome) Settle(ctx context.Context, settlings []dedupstore.Settling) []error {
	return dedupstore.SettleEach(ctx, settlings, h.settleOne)
}

func (h *remoteHome) settleOne(ctx context.Context, c dedupstore.Claim, s dedupstore.Settlement) error {
	return h.settle(ctx, "Home.Settle", KafkaSettle{Claim: c, Settlement: s})
}

func (h *remoteHome) settle(ctx context.Context, method string, q KafkaSettle) error {
	lost := new(KafkaLost)
	if err := h.call(ctx, method, q, lost); err != nil {
		return err
	}
	if *lost {
		return dedupstore.ErrClaimLost
	}
	return nil
}

func (h *remoteHome) Publish(ctx context.Context, messages ...producer.Message) error {
	return h.call(ctx, "Home.Publish", messages, new(KafkaLost))
}
