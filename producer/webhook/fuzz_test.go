package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/producer/webhook"
)

// fuzzed checks a verifier. It must accept only what proof, which is written independently, finds in the header. It
// must return an event or one of its two errors.
func fuzzed(t *testing.T, s scheme, h http.Header, body []byte, proof func(mac func(parts ...string) []byte) bool) {
	t.Helper()
	v := must(s.verifier(s.secret))
	before := string(body)
	e, err := v.Verify(h, body)
	if string(body) != before {
		t.Fatal("the body was changed")
	}
	key := []byte(s.secret)
	if s.name == "Standard Webhooks" {
		key, _ = base64.StdEncoding.DecodeString(strings.TrimPrefix(s.secret, "whsec_"))
	}
	proven := proof(func(parts ...string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(strings.Join(parts, "")))
		return mac.Sum(nil)
	})
	var refused *webhook.SignatureError
	var useless *webhook.EventError
	switch {
	case err == nil && !proven, errors.As(err, &useless) && !proven:
		t.Fatalf("accepted %q: %+v", h, e)
	case err == nil && e.ID == "" && e.Reply == nil:
		t.Fatalf("an event without ID: %+v", e)
	case err != nil && !errors.As(err, &refused) && !errors.As(err, &useless):
		t.Fatalf("error %v (%T)", err, err)
	}
}

// seed adds the scheme's request, and what is wrong with it, by the given headers.
func seed(f *testing.F, s scheme, names ...string) {
	f.Helper()
	s.wrong[""] = s.signed
	for _, h := range s.wrong {
		args := []any{[]byte(h.body)}
		for _, name := range names {
			args = append(args, h.header[name])
		}
		f.Add(args...)
	}
}

func FuzzStandardWebhooks(f *testing.F) {
	s := standardScheme()
	seed(f, s, "webhook-id", "webhook-timestamp", "webhook-signature")
	f.Fuzz(func(t *testing.T, body []byte, id, timestamp, signature string) {
		h := http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {timestamp}, "Webhook-Signature": {signature}}
		fuzzed(t, s, h, body, func(mac func(...string) []byte) bool {
			return strings.Contains(signature, "v1,"+base64.StdEncoding.EncodeToString(mac(id, ".", timestamp, ".",
				string(body))))
		})
	})
}

func FuzzStripe(f *testing.F) {
	s := stripeScheme()
	seed(f, s, "Stripe-Signature")
	f.Fuzz(func(t *testing.T, body []byte, signature string) {
		fuzzed(t, s, http.Header{"Stripe-Signature": {signature}}, body, func(mac func(...string) []byte) bool {
			for part := range strings.SplitSeq(signature, ",") {
				timestamp, ok := strings.CutPrefix(strings.TrimSpace(part), "t=")
				if ok && strings.Contains(strings.ToLower(signature), "v1="+hex.EncodeToString(mac(timestamp, ".",
					string(body)))) {
					return true
				}
			}
			return false
		})
	})
}

func FuzzGitHub(f *testing.F) {
	s := gitHubScheme()
	seed(f, s, "X-GitHub-Delivery", "X-Hub-Signature-256")
	f.Fuzz(func(t *testing.T, body []byte, id, signature string) {
		h := http.Header{"X-Github-Delivery": {id}, "X-Hub-Signature-256": {signature}}
		fuzzed(t, s, h, body, func(mac func(...string) []byte) bool {
			return strings.EqualFold(signature, "sha256="+hex.EncodeToString(mac(string(body))))
		})
	})
}

func FuzzShopify(f *testing.F) {
	s := shopifyScheme()
	seed(f, s, "X-Shopify-Webhook-Id", "X-Shopify-Hmac-Sha256")
	f.Fuzz(func(t *testing.T, body []byte, id, signature string) {
		h := http.Header{"X-Shopify-Webhook-Id": {id}, "X-Shopify-Hmac-Sha256": {signature}}
		fuzzed(t, s, h, body, func(mac func(...string) []byte) bool {
			sum, err := base64.StdEncoding.DecodeString(signature)
			return err == nil && hmac.Equal(sum, mac(string(body)))
		})
	})
}

func FuzzSlack(f *testing.F) {
	s := slackScheme()
	seed(f, s, "X-Slack-Request-Timestamp", "X-Slack-Signature")
	f.Fuzz(func(t *testing.T, body []byte, timestamp, signature string) {
		h := http.Header{"X-Slack-Request-Timestamp": {timestamp}, "X-Slack-Signature": {signature}}
		fuzzed(t, s, h, body, func(mac func(...string) []byte) bool {
			return strings.EqualFold(signature, "v0="+hex.EncodeToString(mac("v0:", timestamp, ":", string(body))))
		})
	})
}
