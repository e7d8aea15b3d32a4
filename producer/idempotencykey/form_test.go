package idempotencykey_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/internal/keytest"
	"github.com/oncemill/oncemill/producer/idempotencykey"
)

// net/http removes the files of its own request's form, and not those of the middleware's.
func TestWrap_AFormThatTheAccountReadsLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := 0
	g := keytest.NewGuard(t, keytest.NewMemory(t), oncemill.Policy{})
	m := keytest.NewMiddleware(t, g, idempotencykey.Config{Account: func(r *http.Request) (string, error) {
		err := r.ParseMultipartForm(1)
		found, _ := os.ReadDir(dir)
		files += len(found)
		return "acme", err
	}})
	mux := http.NewServeMux()
	mux.Handle(keytest.Route, m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	server := httptest.NewServer(mux)
	defer server.Close()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("receipt", "receipt.pdf")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = part.Write(make([]byte, 100<<10))
	form.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/payments", &body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("Idempotency-Key", "k")
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK || files == 0 {
		t.Fatalf("status %d, %d files", answer.StatusCode, files)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the handler may still return
		left, err := os.ReadDir(dir)
		if err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d files are left, %v", len(left), err)
		}
	}
}
