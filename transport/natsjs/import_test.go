package natsjs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/transport/natsjs"
)

// imported is a rig whose worker is in another account, which imports the API of JetStream and what else is said.
func imported(t *testing.T, c jetstream.ConsumerConfig, more string) *rig {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	accounts := fmt.Sprintf(`accounts {
		A { jetstream: enabled, users: [{user: "a", password: "a"}]
			exports: [{service: "$JS.API.>", response_type: "stream"}, {service: "$JS.ACK.>"}] }
		B { users: [{user: "b", password: "b"}]
			imports: [{service: {account: "A", subject: "$JS.API.>"}, to: "JS.A.API.>"}%s] }
	}
	no_auth_user: "a"`, more)
	if err := os.WriteFile(file, []byte(accounts), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, c, func(o *server.Options) {
		if err := o.ProcessConfigFile(file); err != nil {
			t.Fatal(err)
		}
	})
	r.publish(40, oneKey)
	js, err := jetstream.NewWithAPIPrefix(r.server.Connect(nats.UserInfo("b", "b")), "JS.A.API")
	if err != nil {
		t.Fatal(err)
	}
	r.js = js
	if r.cons, err = js.Consumer(t.Context(), "orders", "billing"); err != nil {
		t.Fatal(err)
	}
	return r
}

// Acks that reach nobody would fill MaxAckPending, and nothing would come any more.
func TestWorker_AcksThatAreNotImportedEndTheRun(t *testing.T) {
	t.Parallel()
	r := imported(t, jetstream.ConsumerConfig{MaxAckPending: 10, AckWait: time.Second}, "")
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	if err := r.worker(succeed).Run(ctx); !errors.Is(err, nats.ErrNoResponders) || !strings.Contains(err.Error(), "import $JS.ACK") {
		t.Errorf("Run: %v, want it to say what to import; %d acks are pending", err, r.info().NumAckPending)
	}
}

func TestWorker_WorksInAnAccountThatImportsJetStream(t *testing.T) {
	t.Parallel()
	r := imported(t, jetstream.ConsumerConfig{MaxAckPending: 10}, `, {service: {account: "A", subject: "$JS.ACK.>"}}`)
	stop := r.start(r.worker(succeed))
	r.acked(40)
	r.stops(stop)
}

// An account may import the API of JetStream under a domain name that is not the servers'. Acknowledgements have the
// servers' name. As a prefix of the API the other name is not taken for that of the streams.
func TestPublisher_DomainThatIsNotTheServersIsNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nats.conf")
	const accounts = `accounts {
		A { jetstream: enabled, users: [{user: "a", password: "a"}]
			exports: [{service: "$JS.API.>", response_type: "stream"}, {service: "orders.>"}] }
		B { users: [{user: "b", password: "b"}]
			imports: [{service: {account: "A", subject: "$JS.API.>"}, to: "$JS.acme.API.>"}, {service: {account: "A", subject: "orders.>"}}] }
	}
	no_auth_user: "a"`
	if err := os.WriteFile(file, []byte(accounts), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, jetstream.ConsumerConfig{}, func(o *server.Options) {
		if err := o.ProcessConfigFile(file); err != nil {
			t.Fatal(err)
		}
		o.JetStreamDomain = "hub"
	})
	conn := r.server.Connect(nats.UserInfo("b", "b"))
	message := producer.Message{ID: "o1", Topic: "orders.all", Payload: []byte("tea")}
	js, err := jetstream.NewWithDomain(conn, "acme")
	if err != nil {
		t.Fatal(err)
	}
	p, err := natsjs.NewPublisher(js, natsjs.PublisherConfig{AckTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	f := failuresOf(t, p.Publish(t.Context(), message))[0]
	if want := `of domain "hub" has the message, want one of domain "acme"`; !f.Unknown || !strings.Contains(f.Err.Error(), want) {
		t.Errorf("%+v, want it to say %s", f, want)
	}
	if js, err = jetstream.NewWithAPIPrefix(conn, "$JS.acme.API"); err != nil {
		t.Fatal(err)
	}
	if p, err = natsjs.NewPublisher(js, natsjs.PublisherConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context(), message); err != nil {
		t.Error(err)
	}
}
