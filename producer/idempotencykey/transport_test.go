package idempotencykey_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// A script is a server in place of a transport, which answers in a certain order, the last answer for ever.
type script struct {
	answers []func() (*http.Response, error)

	mu     sync.Mutex
	keys   []string
	bodies []string
	times  []time.Time
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body := ""
	if r.Body != nil {
		data, _ := io.ReadAll(r.Body)
		r.Body.Close()
		body = string(data)
	}
	s.keys = append(s.keys, strings.Join(r.Header.Values("Idempotency-Key"), "|"))
	s.bodies = append(s.bodies, body)
	s.times = append(s.times, time.Now())
	return s.answers[min(len(s.keys), len(s.answers))-1]()
}

func status(code int, headers ...string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		rec := httptest.NewRecorder()
		for i := 0; i < len(headers); i += 2 {
			rec.Header().Set(headers[i], headers[i+1])
		}
		rec.WriteHeader(code)
		return rec.Result(), nil
	}
}

var errReset = errors.New("connection reset")

func reset() (*http.Response, error) { return nil, errReset }

func TestTransport_RequestWithoutAHeaderGetsOne(t *testing.T) {
	t.Parallel()
	server := &script{answers: []func() (*http.Response, error){status(201)}}
	transport, err := idempotencykey.NewTransport(server, idempotencykey.TransportConfig{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse("http://shop.example/orders")
	if err != nil {
		t.Fatal(err)
	}
	r := &http.Request{Method: http.MethodPost, URL: u}
	if _, err := transport.RoundTrip(r); err != nil || server.keys[0] == "" || r.Header != nil {
		t.Errorf("keys %q, header %v, error %v", server.keys, r.Header, err)
	}
}

func TestTransport_TriesAgainWithTheSameKeyAndBodyUntilItCounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		answers []func() (*http.Response, error)
		sent    int
		status  int // 0: an error
	}{
		{"done", []func() (*http.Response, error){status(201)}, 1, 201},
		{"lost connections", []func() (*http.Response, error){reset, reset, status(201)}, 3, 201},
		{"in progress", []func() (*http.Response, error){status(409, "Retry-After", "1"), status(201)}, 2, 201},
		{"a conflict of the application", []func() (*http.Response, error){status(409)}, 1, 409},
		{"too many requests", []func() (*http.Response, error){status(429), status(201)}, 2, 201},
		{"server errors", []func() (*http.Response, error){status(500), status(503, "Retry-After", "2"), status(201)},
			3, 201},
		{"a stored server error", []func() (*http.Response, error){status(502), status(500, "Idempotent-Replayed",
			"true")}, 2, 500},
		{"not implemented", []func() (*http.Response, error){status(501)}, 1, 501},
		{"other content", []func() (*http.Response, error){status(422)}, 1, 422},
		{"a response that is not kept", []func() (*http.Response, error){status(410)}, 1, 410},
		{"never", []func() (*http.Response, error){status(503)}, 5, 503},
		{"never a connection", []func() (*http.Response, error){reset}, 5, 0},
		{"a pause that is too long", []func() (*http.Response, error){status(503, "Retry-After", "3600"),
			status(201)}, 1, 503},
		{"a date that nobody lives to see", []func() (*http.Response, error){status(503, "Retry-After",
			"Fri, 31 Dec 9999 23:59:59 GMT"), status(201)}, 1, 503},
		{"a date", []func() (*http.Response, error){status(503, "Retry-After", "Sat, 01 Jan 2000 00:00:30 GMT"),
			status(201)}, 2, 201},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &script{answers: tc.answers}
				tr := newTransport(t, s, idempotencykey.TransportConfig{})
				r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://x", strings.NewReader("body"))
				start := time.Now()
				resp, err := tr.RoundTrip(r)
				if tc.status == 0 && !errors.Is(err, errReset) || tc.status != 0 && (err != nil ||
					resp.StatusCode != tc.status) {
					t.Fatalf("got %v, %v", resp, err)
				}
				if resp != nil {
					resp.Body.Close()
				}
				if len(s.keys) != tc.sent {
					t.Fatalf("sent %d times, want %d", len(s.keys), tc.sent)
				}
				for i := range s.keys {
					if s.keys[i] != s.keys[0] || len(s.keys[0]) != 38 || s.bodies[i] != "body" {
						t.Errorf("attempt %d: key %q, body %q", i, s.keys[i], s.bodies[i])
					}
				}
				if r.Header.Get("Idempotency-Key") != "" {
					t.Error("the caller's request was changed")
				}
				if d := time.Since(start); d > time.Minute {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

func TestTransport_WaitsAsLongAsTheServerSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []func() (*http.Response, error){status(409, "Retry-After", "30"), status(201)}}
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://x", http.NoBody)
		resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
		if err != nil || resp.StatusCode != 201 {
			t.Fatal(resp, err)
		}
		if d := s.times[1].Sub(s.times[0]); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("it waited %v, want 30 s", d)
		}
	})
}

func TestTransport_TakesTheKeyFromHeaderContextOrMakesOne(t *testing.T) {
	t.Parallel()
	ctx := idempotencykey.WithKey(context.Background(), `order "17"`)
	for _, tc := range []struct {
		name, method string
		ctx          context.Context
		header       string
		want         string // the header; "new": one that is made; empty: none; "!": an error
	}{
		{"header", "POST", ctx, "mine", "mine"},
		{"context", "POST", ctx, "", `"order \"17\""`},
		{"context, any method", "PUT", ctx, "", `"order \"17\""`},
		{"context, method without effect", "GET", ctx, "", ""},
		{"made", "PATCH", context.Background(), "", "new"},
		{"none", "DELETE", context.Background(), "", ""},
		{"not ASCII", "POST", idempotencykey.WithKey(ctx, "ä"), "", "!"},
		{"empty", "POST", idempotencykey.WithKey(ctx, ""), "", "!"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := &script{answers: []func() (*http.Response, error){status(200)}}
			r, _ := http.NewRequestWithContext(tc.ctx, tc.method, "http://x", strings.NewReader("b"))
			if tc.header != "" {
				r.Header.Set("Idempotency-Key", tc.header)
			}
			resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
			if resp != nil {
				resp.Body.Close()
			}
			switch {
			case tc.want == "!" && (err == nil || len(s.keys) > 0):
				t.Errorf("sent %q, error %v", s.keys, err)
			case tc.want == "!":
			case err != nil:
				t.Error(err)
			case tc.want == "new" && len(s.keys[0]) != 38, tc.want != "new" && s.keys[0] != tc.want:
				t.Errorf("sent %q, want %q", s.keys[0], tc.want)
			}
		})
	}
}

// A redirect from a payment to a page about it must not fail there because of the payment's key.
func TestTransport_KeyOfAContextIsNotForWhereItIsRedirectedTo(t *testing.T) {
	t.Parallel()
	rg := serveMemory(t, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			http.Redirect(w, r, keytest.Route+"/1", http.StatusSeeOther)
		case r.Header.Get("Idempotency-Key") != "":
			w.WriteHeader(400)
		}
	})
	client := &http.Client{Transport: newTransport(t, rg.Client.Transport, idempotencykey.TransportConfig{})}
	r, _ := http.NewRequestWithContext(idempotencykey.WithKey(t.Context(), "k"), "POST", rg.Server.URL+keytest.Route,
		strings.NewReader("{}"))
	keytest.Want(t, keytest.Do(client, r), 200, false)
}

// With a new key in place of a stored one that was not found, a repeat would be another request.
func TestTransport_HeaderThatIsNoKeyIsNotReplaced(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{{""}, {" "}, {"", "k1"}, {"k1", "k2"}} {
		s := &script{answers: []func() (*http.Response, error){status(200)}}
		r, _ := http.NewRequestWithContext(idempotencykey.WithKey(t.Context(), "k"), "POST", "http://x",
			strings.NewReader("b"))
		r.Header["Idempotency-Key"] = values
		resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
		if resp != nil {
			resp.Body.Close()
		}
		if err == nil || len(s.keys) > 0 {
			t.Errorf("%q: sent %q, error %v", values, s.keys, err)
		}
	}
}

// A request without effects needs no key: a program may set the header of all its requests.
func TestTransport_EmptyHeaderOfAMethodWithoutEffectIsNoError(t *testing.T) {
	t.Parallel()
	s := &script{answers: []func() (*http.Response, error){status(200)}}
	r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://x", nil)
	r.Header.Set("Idempotency-Key", "")
	resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(s.keys) != 1 || s.keys[0] != "" {
		t.Errorf("sent %q, want once, without a key", s.keys)
	}
}

func TestTransport_NeverTriesAgainWithoutAKeyOrABodyToRepeat(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, method string
		body         io.Reader
		rewind       bool
		sent         int
	}{
		{"no key", "DELETE", strings.NewReader("body"), true, 1},
		{"with GetBody", "POST", strings.NewReader(strings.Repeat("x", 100)), true, 2},
		{"without GetBody", "POST", strings.NewReader("body"), false, 1},
		{"nothing", "POST", nil, true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := &script{answers: []func() (*http.Response, error){status(503), status(200)}}
			r, _ := http.NewRequestWithContext(t.Context(), tc.method, "http://x", tc.body)
			if !tc.rewind {
				r.GetBody = nil
			}
			resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if len(s.keys) != tc.sent {
				t.Errorf("sent %d times, want %d", len(s.keys), tc.sent)
			}
			for _, b := range s.bodies {
				if b != s.bodies[0] || tc.body != nil && b == "" {
					t.Errorf("bodies %q", s.bodies)
				}
			}
		})
	}
}

func TestTransport_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(gone) })
		s := &script{answers: []func() (*http.Response, error){status(503, "Retry-After", "10")}}
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://x", strings.NewReader("b"))
		if _, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r); !errors.Is(err, gone) {
			t.Errorf("got %v", err)
		}
	})
}

func TestTransport_ReturnsTheResponseIfItsContextEndsBeforeThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		s := &script{answers: []func() (*http.Response, error){status(503, "Retry-After", "10")}}
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://x", strings.NewReader("b"))
		resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
		if err != nil || resp.StatusCode != 503 || ctx.Err() != nil {
			t.Fatalf("got %v, %v, %v; want the response at once", resp, err, ctx.Err())
		}
		resp.Body.Close()
	})
}

// endless is the body of a response that never ends.
type endless struct{ closed chan struct{} }

func (e *endless) Read([]byte) (int, error) { <-e.closed; return 0, io.ErrUnexpectedEOF }
func (e *endless) Close() error             { close(e.closed); return nil }

func TestTransport_ResponseThatNeverEndsDoesNotHoldTheNextTryUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{answers: []func() (*http.Response, error){func() (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{},
				Body: &onceClosed{ReadCloser: &endless{make(chan struct{})}}}, nil
		}, status(201)}}
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "http://x", http.NoBody)
		start := time.Now()
		resp, err := newTransport(t, s, idempotencykey.TransportConfig{}).RoundTrip(r)
		if err != nil || resp.StatusCode != 201 || time.Since(start) > time.Second {
			t.Errorf("got %v, %v after %v", resp, err, time.Since(start))
		}
	})
}

// onceClosed closes once, however often it is asked to.
type onceClosed struct {
	io.ReadCloser
	once sync.Once
}

func (o *onceClosed) Close() (err error) {
	o.once.Do(func() { err = o.ReadCloser.Close() })
	return err
}

func TestTransport_RefusesAConfigThatContradictsItself(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]idempotencykey.TransportConfig{
		"Header":      {Header: "a b"},
		"MaxAttempts": {MaxAttempts: -1},
		"MaxElapsed":  {MaxElapsed: -1},
	} {
		_, err := idempotencykey.NewTransport(nil, c)
		if err == nil || !strings.HasPrefix(err.Error(), "idempotencykey: TransportConfig."+field+" is ") {
			t.Errorf("%s: got %v", field, err)
		}
	}
}
