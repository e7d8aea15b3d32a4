package natskv

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore/storetest"
	"github.com/oncemill/oncemill/internal/testserver"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

// brokenBatches are inboxes that break a rule, and the case that must notice it.
var brokenBatches = map[string]struct {
	notices string
	breaks  func(in *Inbox, messages []*nats.Msg, send func() (int64, error)) (int64, error)
}{
	"record first": {"inbox/effect-and-outcome-are-one",
		func(in *Inbox, messages []*nats.Msg, _ func() (int64, error)) (int64, error) {
			n := len(messages) - 1
			ack, err := apart(in, messages[n:])
			if err == nil {
				<-time.After(100 * time.Millisecond) // in which others look
				_, err = apart(in, messages[:n])
			}
			return ack, err
		}},
	"outputs apart": {"inbox/one-owner-asking-at-once",
		func(in *Inbox, messages []*nats.Msg, _ func() (int64, error)) (int64, error) {
			n := len(messages) - 1
			if _, err := apart(in, messages[:n]); err != nil {
				return 0, err
			}
			<-time.After(100 * time.Millisecond) // in which others begin
			return apart(in, messages[n:])
		}},
	"no condition": {"inbox/one-owner-asking-at-once",
		func(_ *Inbox, messages []*nats.Msg, send func() (int64, error)) (int64, error) {
			messages[len(messages)-1].Header.Del(jetstream.ExpectedLastSubjSeqHeader)
			<-time.After(100 * time.Millisecond) // in which others begin
			return send()
		}},
	"sent again under another condition": {"inbox/lost-answer-is-looked-up",
		func(_ *Inbox, messages []*nats.Msg, send func() (int64, error)) (int64, error) {
			last, err := send()
			if err != nil {
				return 0, err
			}
			messages[len(messages)-1].Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatInt(last, 10))
			for _, m := range messages {
				m.Header.Set(batchID, m.Header.Get(batchID)+"again")
			}
			return send()
		}},
	"no rollup": {"inbox/forgotten-outcome-leaves-nothing",
		func(_ *Inbox, messages []*nats.Msg, send func() (int64, error)) (int64, error) {
			messages[len(messages)-1].Header.Del(jetstream.MsgRollup)
			return send()
		}},
}

// apart publishes messages one by one.
func apart(in *Inbox, messages []*nats.Msg) (last int64, err error) {
	for _, m := range messages {
		for name := range m.Header {
			if strings.HasPrefix(name, "Nats-Batch-") {
				m.Header.Del(name)
			}
		}
		m.Reply = ""
		ack, err := in.js.Conn().RequestMsg(m, answerWithin)
		if err != nil {
			return 0, err
		}
		if _, seq, found := strings.Cut(string(ack.Data), `"seq":`); found {
			last, _ = strconv.ParseInt(strings.TrimRight(seq, "}"), 10, 64)
		}
	}
	return last, nil
}

const breaking = "ONCEMILL_TEST_BROKEN_INBOX"

// The suite fails in a process of its own, in one of ten tries: some mistakes show when others come at once.
func TestRunInbox_RejectsBrokenBatches(t *testing.T) {
	testserver.Wanted(t)
	t.Parallel()
	for name, broken := range brokenBatches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := "^TestBrokenInbox$/^" + strings.ReplaceAll(broken.notices, "/", "$/^") + "$"
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", run, "-test.v", "-test.timeout", "5m",
				"-test.count", "10", "-test.failfast")
			cmd.Env = append(os.Environ(), breaking+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !slices.Contains(strings.Fields(string(out)), "TestBrokenInbox/"+broken.notices) ||
				!strings.Contains(string(out), "why "+broken.notices+" matters") {
				t.Errorf("%s accepts it: %v\n%s", broken.notices, err, out)
			}
		})
	}
}

func TestBrokenInbox(t *testing.T) {
	name := os.Getenv(breaking)
	broken, found := brokenBatches[name]
	if !found {
		t.Skip("TestRunInbox_RejectsBrokenBatches runs it")
	}
	js := natstest.Start(t).JetStream()
	newInbox(t, js, Stream("ORDERS", 1, "orders.>"))
	storetest.RunInbox(t, func(t *testing.T) storetest.InboxSubject {
		in := inboxOf(t, js, "ORDERS")
		subject := inboxSubject(t, in)
		in.batches.fault = func(messages []*nats.Msg, send func() (int64, error)) (int64, error) {
			return broken.breaks(in, messages, send)
		}
		return subject
	})
}
