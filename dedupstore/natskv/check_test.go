package natskv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/claimtest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
)

func TestCheck_RefusesBucketsThatDoNotFit(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	newStore(t, js, Bucket("good", 1))
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   string
	}{
		"missing": {nil, "is missing"},
		"no-ttl":  {func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, "allows no TTL"},
		"history": {func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }, "keeps 5 revisions"},
		"per-key": {func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }, "DiscardNewPerSubject"},
		"sealed":  {func(c *jetstream.StreamConfig) { c.Sealed = true }, "is sealed"},
		"mirror": {func(c *jetstream.StreamConfig) {
			*c = jetstream.StreamConfig{
				Name: c.Name, Mirror: &jetstream.StreamSource{Name: "KV_good"}, AllowMsgTTL: true, MaxMsgsPerSubject: 1,
			}
		}, "mirrors another"},
	} {
		if c.change != nil {
			config := Bucket(name, 1)
			c.change(&config)
			if _, err := js.CreateStream(t.Context(), config); err != nil && name != "sealed" {
				t.Fatal(err)
			} else if err != nil { // made sealed by an update only
				config.Sealed, config.DenyDelete = false, false
				if _, err := js.CreateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
				config.Sealed = true
				if _, err := js.UpdateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
		}
		s := storeOf(t, js, name)
		for what, do := range map[string]func() error{
			"Check": func() error { _, err := s.Check(t.Context()); return err },
			"Claim": func() error { _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); return err },
		} {
			var setup *dedupstore.SetupError
			if err := do(); !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %s: %v, want %q", what, name, err, c.want)
			}
		}
	}
}

func TestCheck_SaysWhatABucketCanLose(t *testing.T) {
	t.Parallel()
	js := natstest.StartCluster(t, 3).JetStream()
	for name, c := range map[string]struct {
		replicas int
		change   func(*jetstream.StreamConfig)
		want     []string
	}{
		"safe": {3, func(*jetstream.StreamConfig) {}, nil},
		"one":  {1, func(*jetstream.StreamConfig) {}, []string{"one replica"}},
		"memory": {3, func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }, []string{
			"in memory"}},
		"age": {3, func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, []string{"MaxAge (TTL) of 1h0m0s"}},
		"old": {1, func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld }, []string{
			"one replica", "drops its oldest"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := Bucket(name, c.replicas)
			c.change(&config)
			s := newStore(t, js, config)
			r := natstest.Ask(t, "the report", s.Check)
			if len(r.Losses) != len(c.want) || r.Store != "nats" || !strings.HasPrefix(r.Version, "2.") {
				t.Fatalf("the report is %+v, want losses %q", r, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(r.Losses[i], want) {
					t.Errorf("loss %d is %q, want %q", i, r.Losses[i], want)
				}
			}
		})
	}
}

func TestStore_TheFirstLookWarns(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	newStore(t, js, Bucket("oncemill", 1))
	var log bytes.Buffer
	s, err := New(js, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	if _, err := s.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "one replica"); n != 1 {
		t.Errorf("warned %d times: %s", n, &log)
	}
}

func TestNew_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream()
	var invalid *dedupstore.InvalidError
	for _, name := range []string{"a.b", "*", "a b", "é"} {
		if _, err := New(js, Config{Bucket: name}); !errors.As(err, &invalid) {
			t.Errorf("bucket %q: %v", name, err)
		}
	}
	if _, err := New(nil, Config{}); !errors.As(err, &invalid) {
		t.Errorf("without JetStream: %v", err)
	}
}

func TestStore_RightsAreThoseOfThePackageDoc(t *testing.T) {
	t.Parallel()
	rights := []string{
		"$KV.oncemill.>", "$JS.API.STREAM.INFO.KV_oncemill", "$JS.API.STREAM.MSG.GET.KV_oncemill",
		"$JS.API.DIRECT.GET.KV_oncemill",
	}
	user := func(name string, allow []string) *server.User {
		u := &server.User{Username: name, Password: "pw"}
		if allow != nil {
			u.Permissions = &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: allow},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}
		}
		return u
	}
	s := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			user("admin", nil), user("app", rights), user("no-write", rights[1:]),
			user("no-read", []string{rights[0], rights[1]}), user("no-info", []string{rights[0], rights[2]}),
		}
	})
	newStore(t, s.JetStream(nats.UserInfo("admin", "pw")), Bucket("oncemill", 1))
	app := storeOf(t, s.JetStream(nats.UserInfo("app", "pw")), "oncemill")
	settle(t, app, claim(t, app, request("1"), dedupstore.AcquiredRun).Claim, dedupstore.Release{})
	if _, err := app.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := claimtest.NoteScope(t.Context(), app); err != nil {
		t.Error(err)
	}
	page, err := app.List(t.Context(), dedupstore.Filter{}, "")
	if err != nil || len(page.Records) != 1 {
		t.Fatalf("the list has %+v, %v", page, err)
	}
	if err := app.Change(t.Context(), page.Records[0], dedupstore.Forget{}); err != nil {
		t.Error(err)
	}
	// what others on the connection may not do says nothing of the store
	if err := errors.Join(app.js.Conn().Publish("elsewhere", nil), app.js.Conn().Flush()); err != nil {
		t.Fatal(err)
	}
	natstest.Ask(t, "a refusal", func(context.Context) (struct{}, error) {
		if said := app.js.Conn().LastError(); !errors.Is(said, nats.ErrPermissionViolation) {
			return struct{}{}, fmt.Errorf("the connection says %w", said)
		}
		return struct{}{}, nil
	})
	var unfit *dedupstore.SetupError
	if err := app.failed(t.Context(), nats.ErrTimeout); errors.As(err, &unfit) {
		t.Errorf("a timeout is told as %v", err)
	}
	if err := app.failed(t.Context(), nats.ErrTimeout, "elsewhere"); !errors.As(err, &unfit) {
		t.Errorf("a refusal is told as %v", err)
	}
	for _, name := range []string{"no-write", "no-read", "no-info"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var setup *dedupstore.SetupError
			lacks := storeOf(t, s.JetStream(nats.UserInfo(name, "pw")), "oncemill")
			_, err := lacks.Check(t.Context())
			if !errors.As(err, &setup) || !strings.Contains(err.Error(), "lacks a right") {
				t.Errorf("Check says %v", err)
			}
		})
	}
}
