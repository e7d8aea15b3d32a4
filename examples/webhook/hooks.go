package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/examples/internal/shop"
	"github.com/oncemill/oncemill/producer/webhook"
)

// readme are the secrets of README.md, with which anybody can sign.
var readme = map[string]string{
	"GITHUB_SECRET": "It's a Secret to Everybody", "STRIPE_SECRET": "whsec_of_the_webhook_example",
	"STANDARD_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}

// secretsOf refuses to run without a secret, unless you only want to play with the service.
func secretsOf(env func(string) string, play bool) (map[string]string, error) {
	secrets := map[string]string{}
	for name, known := range readme {
		if !play && env(name) == "" {
			return nil, shop.WrongFlag("-db is set, and %s is not: those of README.md are for play", name)
		}
		secrets[name] = cmp.Or(env(name), known)
	}
	return secrets, nil
}

// hooks are the receivers, and what they stand on.
type hooks struct {
	db        *shop.Database
	receivers map[string]http.Handler // by sender
}

func open(ctx context.Context, path string, lease time.Duration, secrets map[string]string) (_ *hooks, err error) {
	h := &hooks{receivers: map[string]http.Handler{}}
	if h.db, err = shop.OpenSQLite(ctx, path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.db.Close())
		}
	}()
	policy := oncemill.HighValue() // a week is longer than any of the three retries by itself
	policy.Lease = lease
	guard, err := oncemill.NewGuard(h.db.Inbox, policy)
	if err != nil {
		return nil, err
	}
	// It writes in the transaction in which the guard records that the event is known: both or neither.
	enqueue := webhook.PublisherFunc(h.db.Publish)
	for sender, verifier := range map[string]func(secret string, others ...string) (webhook.Verifier, error){
		"github": webhook.GitHub, "stripe": webhook.Stripe, "standard": webhook.StandardWebhooks,
	} {
		v, err := verifier(secrets[strings.ToUpper(sender)+"_SECRET"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", sender, err)
		}
		h.receivers[sender], err = webhook.New(guard, enqueue, webhook.Config{
			Sender: sender, Verifier: v, Topic: "hooks." + sender, Wake: h.db.Box.Wake,
		})
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *hooks) routes(sent *published) http.Handler {
	mux := http.NewServeMux()
	for sender, receiver := range h.receivers {
		mux.Handle("/hooks/"+sender, receiver)
	}
	mux.HandleFunc("GET /published", func(w http.ResponseWriter, r *http.Request) { sent.list(w, r, h.db.Box) })
	return mux
}
