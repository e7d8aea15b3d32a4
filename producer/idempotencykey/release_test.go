package idempotencykey_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// harmless are refusals that did nothing.
func harmless(status int) bool { return status == 404 || status == 429 }

func TestRelease_RefusedRequestRunsAgainWithItsKey(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]oncemill.Policy{"usual": {MaxAttempts: 1}, "parks": oncemill.Irreversible()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &keytest.Ledger{}
			rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), p), idempotencykey.Config{Release: harmless},
				func(w http.ResponseWriter, _ *http.Request) {
					statuses := []int{404, 429, 404, 402}
					w.WriteHeader(statuses[l.Add("")-1])
					io.WriteString(w, "said")
				})
			for _, status := range []int{404, 429, 404, 402} { // none counts as the one attempt
				a := rg.Pay("k")
				keytest.Want(t, a, status, false)
				if a.Body != "said" || a.Header.Get("Retry-After") != "" {
					t.Errorf("%q, Retry-After %q", a.Body, a.Header.Get("Retry-After"))
				}
			}
			keytest.Want(t, rg.Pay("k"), 402, true)
			keytest.WantRuns(t, l, 4)
		})
	}
}

func TestRelease_KeyStaysBoundToItsRequest(t *testing.T) {
	t.Parallel()
	rg, n := answering(t, idempotencykey.Config{Release: harmless}, 404, 201)
	keytest.Want(t, rg.Pay("k"), 404, false)
	keytest.WantProblem(t, rg.Send("POST", keytest.Route, "other", keytest.Key("k")), 422, idempotencykey.CodeReused)
	keytest.Want(t, rg.Pay("k"), 201, false)
	keytest.WantRuns(t, n, 2)
}

func TestRelease_ByDefaultEveryResponseIsKept(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 404, 429, 503} {
		rg, n := answering(t, idempotencykey.Config{}, status)
		keytest.Want(t, rg.Pay("k"), status, false)
		keytest.Want(t, rg.Pay("k"), status, true)
		keytest.WantRuns(t, n, 1)
	}
}

func TestRelease_SuccessIsNeverReleased(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 303} {
		rg, n := answering(t, idempotencykey.Config{Release: func(int) bool { return true }}, status)
		rg.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		keytest.Want(t, rg.Pay("k"), status, false)
		keytest.Want(t, rg.Pay("k"), status, true)
		keytest.WantRuns(t, n, 1)
	}
}

func TestRelease_ServerErrorOfAPolicyThatParksIsKept(t *testing.T) {
	t.Parallel()
	l := &keytest.Ledger{}
	rg := keytest.Serve(t, keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Irreversible()),
		idempotencykey.Config{Release: idempotencykey.ServerErrors},
		func(w http.ResponseWriter, _ *http.Request) { l.Add(""); w.WriteHeader(503) })
	keytest.Want(t, rg.Pay("k"), 503, false)
	keytest.Want(t, rg.Pay("k"), 503, true)
	keytest.WantRuns(t, l, 1)
}

// A key that is given back must leave nothing behind: what stayed would be written again. What must stay is written by
// a response that is kept.
func TestRelease_InboxRollsBackAReleasedResponseAndNoOther(t *testing.T) {
	t.Parallel()
	box, l := keytest.NewInbox(t), &keytest.Ledger{}
	rg := transacted(t, box, idempotencykey.Config{Release: harmless}, func(w http.ResponseWriter, r *http.Request) {
		status := []int{404, 402}[l.Add("")-1]
		keytest.Write(r.Context(), http.StatusText(status))
		w.WriteHeader(status)
	})
	keytest.Want(t, rg.Pay("k"), 404, false)
	if len(box.Rows()) != 0 {
		t.Errorf("rows %q of a response that was released", box.Rows())
	}
	keytest.Want(t, rg.Pay("k"), 402, false)
	keytest.Want(t, rg.Pay("k"), 402, true)
	if got := strings.Join(box.Rows(), ", "); got != http.StatusText(402) {
		t.Errorf("rows %q, want the one of the response that was kept", got)
	}
	keytest.WantRuns(t, l, 2)
}
