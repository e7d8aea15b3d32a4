package webhook_test

import (
	"strings"

	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

// A scheme is a way of signing, with one valid request and all that can be wrong with it.
type scheme struct {
	name      string
	secret    string
	verifier  func(secret string, others ...string) (webhook.Verifier, error)
	now       int64 // when the request was signed, or any time
	signed    hook
	id        string          // of its event
	header    producer.Header // of the request, in the message
	timestamp string          // the header that holds the time; "": none is signed
	wrong     map[string]hook // what is refused with 401
}

func schemes() []scheme {
	return []scheme{standardScheme(), stripeScheme(), gitHubScheme(), shopifyScheme(), slackScheme()}
}

// The vector of the specification's reference libraries: github.com/standard-webhooks/standard-webhooks,
// libraries/go/webhook_test.go, TestWebhookSign.
func standardScheme() scheme {
	const signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	h := hook{map[string]string{
		"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330", "webhook-signature": signature,
	}, `{"test": 2432232314}`}
	return scheme{
		name: "Standard Webhooks", secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", verifier: webhook.StandardWebhooks,
		now: 1614265330, signed: h, id: "msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp: "webhook-timestamp",
		wrong: map[string]hook{
			"another ID":         h.with("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJeK"),
			"no ID":              h.with("webhook-id", ""),
			"another version":    h.with("webhook-signature", strings.Replace(signature, "v1", "v2", 1)),
			"asymmetric version": h.with("webhook-signature", strings.Replace(signature, "v1", "v1a", 1)),
			"no version":         h.with("webhook-signature", strings.TrimPrefix(signature, "v1,")),
			"altered signature":  h.with("webhook-signature", strings.Replace(signature, "g0", "g1", 1)),
			"cut signature":      h.with("webhook-signature", signature[:20]),
			"empty signature":    h.with("webhook-signature", "v1,"),
			"no signature":       h.with("webhook-signature", ""),
			"the time in the ID": h.with("webhook-id",
				"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330").with("webhook-timestamp", "1614265330"),
			"altered time":            h.with("webhook-timestamp", "1614265331"),
			"time with a zero before": h.with("webhook-timestamp", "01614265330"),
			"time in words":           h.with("webhook-timestamp", "now"),
			"endless time":            h.with("webhook-timestamp", strings.Repeat("1", 30)),
		},
	}
}

// Stripe publishes no vector. This one is from
//
//	printf '1492774577.{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","pending_webhooks":1}' |
//	  openssl dgst -sha256 -hmac 'whsec_oncemill_test_key_0001'
func stripeScheme() scheme {
	const sum = "86d07aea58047a8fcf7cdc0f8b0573819f2e115c7f3a63edd96666e53c35cc66"
	h := hook{
		map[string]string{"Stripe-Signature": "t=1492774577,v1=" + sum},
		`{"id":"evt_1NG8Du2eZvKYlo2CUI79vXWy","object":"event","pending_webhooks":1}`,
	}
	return scheme{
		name: "Stripe", secret: "whsec_oncemill_test_key_0001", verifier: webhook.Stripe,
		now: 1492774577, signed: h, id: "evt_1NG8Du2eZvKYlo2CUI79vXWy", timestamp: "Stripe-Signature",
		wrong: map[string]hook{
			"another ID":        h.withBody(strings.Replace(h.body, "vXWy", "vXWz", 1)),
			"another version":   h.with("Stripe-Signature", "t=1492774577,v0="+sum),
			"altered signature": h.with("Stripe-Signature", "t=1492774577,v1=9"+sum[1:]),
			"cut signature":     h.with("Stripe-Signature", "t=1492774577,v1="+sum[:32]),
			"empty signature":   h.with("Stripe-Signature", "t=1492774577,v1="),
			"no signature":      h.with("Stripe-Signature", ""),
			"no time":           h.with("Stripe-Signature", "v1="+sum),
			"altered time":      h.with("Stripe-Signature", "t=1492774578,v1="+sum),
			"two times":         h.with("Stripe-Signature", "t=1492774578,t=1492774577,v1="+sum),
			"negative time":     h.with("Stripe-Signature", "t=-1492774577,v1="+sum),
		},
	}
}

// The vector of docs.github.com, "Validating webhook deliveries", section "Testing the webhook payload validation".
func gitHubScheme() scheme {
	const sum = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	h := hook{map[string]string{
		"X-Hub-Signature-256": "sha256=" + sum, "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
		"X-GitHub-Event":  "issues",
		"X-Hub-Signature": "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6", "Content-Type": "application/json",
	}, "Hello, World!"}
	return scheme{
		name: "GitHub", secret: "It's a Secret to Everybody", verifier: webhook.GitHub,
		now: 1492774577, signed: h, id: "72d3162e-cc78-11e3-81ab-4c9367dc0958",
		header: producer.Header{"x-github-event": "issues", "content-type": "application/json"},
		wrong: map[string]hook{
			"another version":   h.with("X-Hub-Signature-256", "sha1="+sum),
			"no version":        h.with("X-Hub-Signature-256", sum),
			"altered signature": h.with("X-Hub-Signature-256", "sha256=8"+sum[1:]),
			"cut signature":     h.with("X-Hub-Signature-256", "sha256="+sum[:32]),
			"empty signature":   h.with("X-Hub-Signature-256", "sha256="),
			"no signature":      h.with("X-Hub-Signature-256", ""),
		},
	}
}

// Shopify publishes no vector. This one is from
//
//	printf '{"id":820982911946154508,"total_price":"199.00"}' |
//	  openssl dgst -sha256 -hmac 'hush-hush-this-is-a-secret' -binary | openssl base64
func shopifyScheme() scheme {
	const sum = "u3jpFl85FB2cboGlXdD/64W4eOR3RmeGC1ArGl1f0tw="
	h := hook{map[string]string{
		"X-Shopify-Hmac-Sha256": sum, "X-Shopify-Webhook-Id": "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
		"X-Shopify-Event-Id": "98880550-7158-44d4-b7cd-2c97c8a091b5", "X-Shopify-Topic": "orders/create",
		"X-Shopify-Triggered-At": "2023-03-29T18:00:27.877041743Z",
	}, `{"id":820982911946154508,"total_price":"199.00"}`}
	return scheme{
		name: "Shopify", secret: "hush-hush-this-is-a-secret", verifier: webhook.Shopify,
		now: 1492774577, signed: h, id: "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
		header: producer.Header{
			"x-shopify-topic": "orders/create", "x-shopify-event-id": "98880550-7158-44d4-b7cd-2c97c8a091b5",
			"x-shopify-triggered-at": "2023-03-29T18:00:27.877041743Z",
		},
		wrong: map[string]hook{
			"altered signature": h.with("X-Shopify-Hmac-Sha256", "v"+sum[1:]),
			"cut signature":     h.with("X-Shopify-Hmac-Sha256", sum[:20]),
			"hexadecimal": h.with("X-Shopify-Hmac-Sha256",
				"bb78e9165f39141d9c6e81a55dd0ffeb85b878e4774667860b502b1a5d5fd2dc"),
			"no signature": h.with("X-Shopify-Hmac-Sha256", ""),
		},
	}
}

// Slack's own vector is of a request without event_id: see TestSlack_PublishedVectorIsProven. This one has its key,
// and is from
//
//	printf 'v0:1531420618:{"type":"event_callback","event_id":"Ev0PV52K21","event":{"type":"app_mention"}}' |
//	  openssl dgst -sha256 -hmac '8f742231b10e8888abcd99yyyzzz85a5'
func slackScheme() scheme {
	const sum = "4a69490cae046f1b0ec9e62c92bd04691d1390af12c9a4eda1bac1f280c856ad"
	h := hook{
		map[string]string{"X-Slack-Signature": "v0=" + sum, "X-Slack-Request-Timestamp": "1531420618"},
		`{"type":"event_callback","event_id":"Ev0PV52K21","event":{"type":"app_mention"}}`,
	}
	return scheme{
		name: "Slack", secret: "8f742231b10e8888abcd99yyyzzz85a5", verifier: webhook.Slack,
		now: 1531420618, signed: h, id: "Ev0PV52K21", timestamp: "X-Slack-Request-Timestamp",
		wrong: map[string]hook{
			"another ID":        h.withBody(strings.Replace(h.body, "K21", "K22", 1)),
			"another version":   h.with("X-Slack-Signature", "v1="+sum),
			"no version":        h.with("X-Slack-Signature", sum),
			"altered signature": h.with("X-Slack-Signature", "v0=5"+sum[1:]),
			"cut signature":     h.with("X-Slack-Signature", "v0="+sum[:32]),
			"no signature":      h.with("X-Slack-Signature", ""),
			"no time":           h.with("X-Slack-Request-Timestamp", ""),
			"altered time":      h.with("X-Slack-Request-Timestamp", "1531420619"),
			"time in hex":       h.with("X-Slack-Request-Timestamp", "0x5b47a00a"),
		},
	}
}
