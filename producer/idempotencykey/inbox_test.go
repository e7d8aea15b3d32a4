package idempotencykey_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// transacted serves over an inbox in memory.
func transacted(t testing.TB, box *keytest.Inbox, c idempotencykey.Config, h http.HandlerFunc) *keytest.Rig {
	t.Helper()
	return keytest.Serve(t, keytest.NewGuard(t, box, oncemill.Policy{}), c, h)
}

func TestInbox_WritesAndResponseAppearTogether(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	var before int
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		keytest.Write(r.Context(), oncemill.FromContext(r.Context()).ID("payments"))
		w.WriteHeader(201)
		io.WriteString(w, "paid")
		before = len(box.Rows())
	})
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.Want(t, rg.Pay("k"), 201, true)
	if before != 0 || len(box.Rows()) != 1 {
		t.Errorf("%d rows before the commit, %d after two requests", before, len(box.Rows()))
	}
}

func TestInbox_ServerErrorRollsBackAndIsStored(t *testing.T) {
	t.Parallel()
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		l.Add("")
		keytest.Write(r.Context(), "row")
		w.WriteHeader(502)
		io.WriteString(w, "no")
	})
	first, again := rg.Pay("k"), rg.Pay("k")
	keytest.Want(t, first, 502, false)
	keytest.Want(t, again, 502, true)
	if len(box.Rows()) != 0 || first.Body != "no" || again.Body != "no" {
		t.Errorf("%d rows, %q and %q", len(box.Rows()), first.Body, again.Body)
	}
	keytest.WantRuns(t, l, 1)
}

func TestInbox_ClientErrorCommitsWhatWasWritten(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		keytest.Write(r.Context(), "refusal")
		w.WriteHeader(402)
	})
	keytest.Want(t, rg.Pay("k"), 402, false)
	if len(box.Rows()) != 1 {
		t.Errorf("%d rows", len(box.Rows()))
	}
}

func TestInbox_ResponseThatCannotBeHeldIsRefusedAndRolledBack(t *testing.T) {
	t.Parallel()
	for name, respond := range map[string]func(w http.ResponseWriter){
		"too large": func(w http.ResponseWriter) {
			w.Header().Set("Location", "/payments/1")
			w.WriteHeader(201)
			if _, err := w.Write(make([]byte, 1<<16+1)); !errors.Is(err, idempotencykey.ErrResponseTooLarge) {
				t.Errorf("Write returned %v", err)
			}
		},
		"too large in pieces": func(w http.ResponseWriter) {
			for range 7000 {
				io.WriteString(w, "0123456789")
			}
		},
		"header too large": func(w http.ResponseWriter) { w.Header().Set("Location", strings.Repeat("x", 1<<16)) },
		"shorter than announced": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "20")
			io.WriteString(w, "half")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box, l := keytest.NewInbox(t), &keytest.Ledger{}
			rg := transacted(t, box, idempotencykey.Config{},
				func(w http.ResponseWriter, r *http.Request) {
					l.Add("")
					keytest.Write(r.Context(), "row")
					respond(w)
				})
			a := rg.Pay("k")
			keytest.WantProblem(t, a, 500, idempotencykey.CodeRefused)
			if a.Header.Get("Location") != "" {
				t.Errorf("header %v", a.Header)
			}
			again := rg.Pay("k")
			keytest.WantProblem(t, again, 500, idempotencykey.CodeRefused)
			if !again.Replayed() || len(box.Rows()) != 0 {
				t.Errorf("replayed %v, %d rows", again.Replayed(), len(box.Rows()))
			}
			keytest.WantRuns(t, l, 1)
		})
	}
}

func TestInbox_RefusedResponseHasTheFormOfTheOtherProblems(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		write func(w http.ResponseWriter, p idempotencykey.Problem)
		body  string
	}{
		"its own": {func(w http.ResponseWriter, p idempotencykey.Problem) {
			w.Header().Set("Content-Type", "text/x-problem")
			w.WriteHeader(p.Status)
			io.WriteString(w, p.Code)
		}, idempotencykey.CodeRefused},
		"too large as well": {func(w http.ResponseWriter, _ idempotencykey.Problem) {
			w.Write(make([]byte,
				1<<20))
		}, ""},
		"that would commit":   {func(w http.ResponseWriter, _ idempotencykey.Problem) { w.WriteHeader(200) }, ""},
		"that writes nothing": {func(http.ResponseWriter, idempotencykey.Problem) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := keytest.NewInbox(t)
			rg := transacted(t, box, idempotencykey.Config{
				WriteProblem: func(w http.ResponseWriter, _ *http.Request, p idempotencykey.Problem) { tc.write(w, p) },
			}, func(w http.ResponseWriter, r *http.Request) {
				keytest.Write(r.Context(), "row")
				w.Write(make([]byte, 1<<20))
			})
			first, again := rg.Pay("k"), rg.Pay("k")
			keytest.Want(t, first, 500, false)
			keytest.Want(t, again, 500, true)
			if first.Body != tc.body || again.Body != tc.body ||
				first.Header.Get("Content-Type") != again.Header.Get("Content-Type") || len(box.Rows()) != 0 {
				t.Errorf("%q %v, then %q %v; %d rows", first.Body, first.Header, again.Body, again.Header, len(box.Rows()))
			}
		})
	}
}

func TestInbox_NothingLeavesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		keytest.Write(r.Context(), "row")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "held")
		rc := http.NewResponseController(w)
		if err := rc.Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Flush returned %v", err)
		}
		if _, _, err := rc.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack returned %v", err)
		}
		if _, ok := w.(http.Flusher); ok {
			t.Error("the writer says that it can flush")
		}
	})
	var hints atomic.Int32
	if a := rg.Pay("k", informational(&hints)); a.Status != 200 || a.Body != "held" || hints.Load() != 0 {
		t.Errorf("%d %q, informational %d", a.Status, a.Body, hints.Load())
	}
}

func TestInbox_RepeatedTransactionRunsAsIfItWereTheFirst(t *testing.T) {
	t.Parallel()
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	box.Again = 2
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter, r *http.Request) {
		keytest.Write(r.Context(), "row")
		body, _ := io.ReadAll(r.Body)
		if l.Add("") < 3 {
			r.Header.Set("Spoilt", "x")
			w.Header().Set("Location", "spoilt")
			w.WriteHeader(202)
			return
		}
		if r.Header.Get("Spoilt") != "" {
			t.Error("the header of the request is that of another run")
		}
		w.WriteHeader(201)
		w.Write(body)
	})
	a := rg.Pay("k")
	keytest.Want(t, a, 201, false)
	if a.Body != `{"amount":100}` || a.Header.Get("Location") != "" || len(box.Rows()) != 1 {
		t.Errorf("%q %v, %d rows", a.Body, a.Header, len(box.Rows()))
	}
}

func TestInbox_UndecidedCommitIsNeverAnsweredAsDone(t *testing.T) {
	t.Parallel()
	box := keytest.NewInbox(t)
	box.Undecided = errors.New("connection lost")
	rg := transacted(t, box, idempotencykey.Config{}, func(w http.ResponseWriter,
		r *http.Request) {
		w.WriteHeader(201)
	})
	keytest.WantProblem(t, rg.Pay("k"), 503, idempotencykey.CodeUnavailable)
}

func TestInbox_PanicRollsBack(t *testing.T) {
	t.Parallel()
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	rg := transacted(t, box, idempotencykey.Config{}, func(_ http.ResponseWriter, r *http.Request) {
		keytest.Write(r.Context(), "row")
		if l.Add("") == 1 {
			panic(http.ErrAbortHandler)
		}
	})
	if a := rg.Pay("k"); a.Err == nil || len(box.Rows()) != 0 {
		t.Errorf("answered %d, %d rows", a.Status, len(box.Rows()))
	}
	keytest.Want(t, rg.Pay("k"), 200, false)
	if len(box.Rows()) != 1 {
		t.Errorf("%d rows", len(box.Rows()))
	}
}
