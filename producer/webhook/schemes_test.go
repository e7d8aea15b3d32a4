package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

func TestReceiver_ProvenEventIsEnqueuedOnceAsItCameIn(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		t.Run(s.name, func(t *testing.T) {
			virtual(t, s.now, func(t *testing.T) {
				var q queue
				rc := trusting(t, &q, must(s.verifier(s.secret)))
				send(t, rc, s.signed, http.StatusOK)
				send(t, rc, s.signed, http.StatusOK)
				header := producer.Header{webhook.HeaderSender: "shop", webhook.HeaderEventID: s.id}
				for k, v := range s.header {
					header[k] = v
				}
				want := []producer.Message{{
					ID: webhook.MessageID("", "shop", s.id), Topic: "hooks", Header: header,
					Payload: []byte(s.signed.body),
				}}
				if !reflect.DeepEqual(q.messages, want) {
					t.Errorf("enqueued %+v, want %+v", q.messages, want)
				}
			})
		})
	}
}

func TestReceiver_UnprovenRequestIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		wrong := s.wrong
		wrong["altered body"] = s.signed.withBody(s.signed.body + " ")
		wrong["empty body"] = s.signed.withBody("")
		wrong["nothing signed"] = hook{body: s.signed.body}
		for name, h := range wrong {
			t.Run(s.name+" "+name, func(t *testing.T) {
				virtual(t, s.now, func(t *testing.T) { refused(t, s, h, s.secret) })
			})
		}
		t.Run(s.name+" other key", func(t *testing.T) {
			virtual(t, s.now, func(t *testing.T) {
				refused(t, s, s.signed, "whsec_"+strings.Repeat("QUFB", 8), "whsec_"+strings.Repeat("QkJC", 8))
			})
		})
		t.Run(s.name+" header twice", func(t *testing.T) {
			virtual(t, s.now, func(t *testing.T) {
				var q queue
				rc := trusting(t, &q, must(s.verifier(s.secret)))
				for name, value := range s.signed.header {
					if !strings.Contains(strings.ToLower(name), "hmac") &&
						!strings.HasSuffix(strings.ToLower(strings.TrimSuffix(name, "-256")), "signature") ||
						name == "X-Hub-Signature" {
						continue
					}
					r := s.signed.request(t.Context())
					r.Header.Add(name, value)
					do(t, rc, r, http.StatusUnauthorized)
				}
				q.want(t, 0)
			})
		})
	}
}

func refused(t *testing.T, s scheme, h hook, secret string, others ...string) {
	t.Helper()
	var q queue
	store := newStore(t)
	rc := receiver(t, newGuard(t, store, oncemill.Policy{}), &q, webhook.Config{Verifier: must(s.verifier(secret,
		others...))})
	w := send(t, rc, h, http.StatusUnauthorized)
	if w.Header().Get("WWW-Authenticate") == "" {
		t.Error("no WWW-Authenticate, which a 401 must have")
	}
	q.want(t, 0)
	if store.claims != 0 {
		t.Errorf("%d claims, want none before the signature is proven", store.claims)
	}
}

func TestReceiver_TimeOutsideTheToleranceIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		for name, tc := range map[string]struct {
			off  time.Duration // of this machine's clock
			want int
		}{
			"old":              {5*time.Minute + time.Second, http.StatusUnauthorized},
			"as old as may be": {5 * time.Minute, http.StatusOK},
			"new":              {-5*time.Minute - time.Second, http.StatusUnauthorized},
			"as new as may be": {-5 * time.Minute, http.StatusOK},
		} {
			if s.timestamp == "" {
				tc.want = http.StatusOK
			}
			t.Run(s.name+" "+name, func(t *testing.T) {
				virtual(t, s.now+int64(tc.off/time.Second), func(t *testing.T) {
					var q queue
					rc := trusting(t, &q, must(s.verifier(s.secret)))
					send(t, rc, s.signed, tc.want)
					if tc.want == http.StatusOK {
						q.want(t, 1)
					} else {
						q.want(t, 0)
					}
				})
			})
		}
	}
}

func TestReceiver_AnyOfSeveralKeysProves(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		other := "whsec_" + strings.Repeat("QUFB", 8)
		for name, secrets := range map[string][]string{"first": {s.secret, other}, "last": {other, s.secret}} {
			t.Run(s.name+" "+name, func(t *testing.T) {
				virtual(t, s.now, func(t *testing.T) {
					var q queue
					v := must(s.verifier(secrets[0], secrets[1:]...))
					rc := receiver(t, newGuard(t, newStore(t), oncemill.Policy{}), &q, webhook.Config{Verifier: v})
					send(t, rc, s.signed, http.StatusOK)
					q.want(t, 1)
				})
			})
		}
	}
}

// During a rotation, senders that can sign with both keys do.
func TestVerifiers_OneOfSeveralSignaturesIsEnough(t *testing.T) {
	t.Parallel()
	standard, stripe := standardScheme(), stripeScheme()
	v1 := standard.signed.header["webhook-signature"]
	const other = "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc="
	signature := stripe.signed.header["Stripe-Signature"]
	zeros := strings.Repeat("0", 64)
	for name, tc := range map[string]struct {
		s scheme
		h hook
	}{
		"Standard Webhooks": {standard, standard.signed.with("webhook-signature",
			other+" v1a,eA== v2,"+other[3:]+" "+v1+" "+other)},
		"Stripe": {stripe, stripe.signed.with("Stripe-Signature",
			"t=1492774577,v1="+zeros+",v0="+zeros+strings.TrimPrefix(signature, "t=1492774577"))},
	} {
		e, err := must(tc.s.verifier(tc.s.secret)).Verify(tc.h.request(t.Context()).Header, []byte(tc.h.body))
		if err != nil || e.ID != tc.s.id || e.Sent.Unix() != tc.s.now {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

// ID, time and body are signed with full stops between them, so one signature fits several ways to cut them. Here the
// body begins with what looks like a time.
func TestStandardWebhooks_PartsCannotBeCutElsewhere(t *testing.T) {
	t.Parallel()
	v := must(webhook.StandardWebhooks(base64.StdEncoding.EncodeToString([]byte("twenty-four bytes or more"))))
	mac := hmac.New(sha256.New, []byte("twenty-four bytes or more"))
	mac.Write([]byte("msg_1.1614265330.1614265331.x"))
	h := hook{map[string]string{"webhook-signature": "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))},
		"1614265331.x"}
	good := h.with("webhook-id", "msg_1").with("webhook-timestamp", "1614265330")
	if e, err := v.Verify(good.request(t.Context()).Header, []byte(good.body)); err != nil || e.ID != "msg_1" {
		t.Fatalf("%+v, %v", e, err)
	}
	cut := h.with("webhook-id", "msg_1.1614265330").with("webhook-timestamp", "1614265331").withBody("x")
	_, err := v.Verify(cut.request(t.Context()).Header, []byte(cut.body))
	as[*webhook.SignatureError](t, err)
}

// The vector of docs.slack.dev, "Verifying requests from Slack": a slash command.
func TestSlack_PublishedVectorIsProven(t *testing.T) {
	t.Parallel()
	h := hook{
		map[string]string{
			"X-Slack-Signature":         "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
			"X-Slack-Request-Timestamp": "1531420618",
		},
		"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V" +
			"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=" +
			"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2" +
			"F397700885554%2F96rGlfmibIGlgcZRskXaIFfN" +
			"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c",
	}
	v := must(webhook.Slack("8f742231b10e8888abcd99yyyzzz85a5"))
	_, err := v.Verify(h.request(t.Context()).Header, []byte(h.body))
	if _, refused := errors.AsType[*webhook.SignatureError](err); err == nil || refused {
		t.Errorf("error %v, want that of a proven request which is of no use", err)
	}
	_, err = v.Verify(h.request(t.Context()).Header, []byte(h.body+"&"))
	as[*webhook.SignatureError](t, err)
}

// The signature is from
//
//	printf 'v0:1531420618:{"type":"url_verification","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CYhVBuaaaaa"}' |
//	  openssl dgst -sha256 -hmac '8f742231b10e8888abcd99yyyzzz85a5'
func TestSlack_ChallengeIsAnsweredIfItIsSigned(t *testing.T) {
	s := slackScheme()
	virtual(t, s.now, func(t *testing.T) {
		var q queue
		store := newStore(t)
		rc := receiver(t, newGuard(t, store, oncemill.Policy{}), &q,
			webhook.Config{Verifier: must(webhook.Slack(s.secret))})
		h := s.signed.withBody(`{"type":"url_verification","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CYhVBuaaaaa"}`)
		send(t, rc, h, http.StatusUnauthorized)
		h = h.with("X-Slack-Signature", "v0=fa32345e72cd1791a2f7795158f779b43682620458d297b16265c646bb545de6")
		if w := send(t, rc, h, http.StatusOK); w.Body.String() != "3eZbrw1aBm2rZgRNFdxV2595E9CYhVBuaaaaa" {
			t.Errorf("answered %q", w.Body)
		}
		time.Sleep(6 * time.Minute)
		send(t, rc, h, http.StatusUnauthorized)
		q.want(t, 0)
		if store.claims != 0 {
			t.Error("a challenge was claimed")
		}
	})
}

// docs.slack.dev, event app_rate_limited: it is the one event without event_id.
func TestSlack_RateLimitOfAMinuteIsOneEvent(t *testing.T) {
	virtual(t, start, func(t *testing.T) {
		var q queue
		rc := trusting(t, &q, must(webhook.Slack(secret)))
		slack := func(body string) hook {
			now := strconv.FormatInt(time.Now().Unix(), 10)
			return hook{map[string]string{"X-Slack-Signature": "v0=" + sum("v0:", now, ":", body),
				"X-Slack-Request-Timestamp": now}, body}
		}
		const limited = `{"type":"app_rate_limited","team_id":"T123456","minute_rate_limited":1518467820,` +
			`"api_app_id":"A123456"}`
		send(t, rc, slack(limited), http.StatusOK)
		send(t, rc, slack(limited), http.StatusOK)
		q.want(t, 1)
		if id := q.messages[0].Header[webhook.HeaderEventID]; id != "app_rate_limited A123456 T123456 1518467820" {
			t.Errorf("event ID %q", id)
		}
		send(t, rc, slack(strings.Replace(limited, "820", "880", 1)), http.StatusOK)
		send(t, rc, slack(strings.Replace(limited, "T1", "T2", 1)), http.StatusOK)
		q.want(t, 3)
		send(t, rc, slack(strings.Replace(limited, "minute_", "", 1)), http.StatusBadRequest)
		send(t, rc, slack(strings.Replace(limited, "team_", "", 1)), http.StatusBadRequest)
		q.want(t, 3)
	})
}

func TestVerifiers_HeaderOfAnyLengthIsNotRead(t *testing.T) {
	t.Parallel()
	s := stripeScheme()
	v := must(s.verifier(s.secret))
	signature := s.signed.header["Stripe-Signature"] + ",v0="
	long := signature + strings.Repeat("0", 4<<10-len(signature))
	if _, err := v.Verify(s.signed.with("Stripe-Signature", long).request(t.Context()).Header,
		[]byte(s.signed.body)); err != nil {
		t.Errorf("%d bytes: %v", len(long), err)
	}
	_, err := v.Verify(s.signed.with("Stripe-Signature", long+"0").request(t.Context()).Header, []byte(s.signed.body))
	if e := as[*webhook.SignatureError](t, err); !strings.Contains(e.Problem, "too long") {
		t.Errorf("%d bytes: %v", len(long)+1, err)
	}
}

func TestVerifiers_WeakKeysAreRefused(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		for _, secrets := range [][]string{{""}, {"whsec_"}, {"fifteen bytes.."}, {s.secret, ""},
			{"whsec_c2l4dGVlbiBieXRlcy4u"}} {
			if s.name != "Standard Webhooks" && slices.Contains(secrets, "whsec_c2l4dGVlbiBieXRlcy4u") {
				continue // it is the text that counts there
			}
			_, err := s.verifier(secrets[0], secrets[1:]...)
			if err == nil || !strings.HasPrefix(err.Error(), "webhook: secret ") {
				t.Errorf("%s %q: %v", s.name, secrets, err)
			}
		}
	}
}

func TestVerifiers_LineEndOfAFileIsNotTakenForPartOfAKey(t *testing.T) {
	t.Parallel()
	for _, s := range schemes() {
		for _, end := range []string{"\n", "\r\n"} {
			verifier, err := s.verifier(s.secret + end)
			if s.name != "Standard Webhooks" {
				if err == nil || !strings.HasPrefix(err.Error(), "webhook: secret 1 has a line end") {
					t.Errorf("%s: %v", s.name, err)
				}
				continue
			}
			if err != nil { // base64 has line ends anywhere
				t.Fatalf("%s: %v", s.name, err)
			}
			h := http.Header{}
			for name, value := range s.signed.header {
				h.Set(name, value)
			}
			if _, err := verifier.Verify(h, []byte(s.signed.body)); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
	}
}

func TestStripe_RefusesAKeyOfTheAPI(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"sk_live_0123456789abcdef", "rk_test_0123456789abcdef", "pk_live_0123456789abcdef"} {
		if _, err := webhook.Stripe("whsec_0123456789abcdef", secret); err == nil || strings.Contains(err.Error(), "0123") {
			t.Errorf("a key of the API was answered with %v, want an error that does not show it", err)
		}
	}
}
