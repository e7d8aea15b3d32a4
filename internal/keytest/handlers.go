package keytest

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oncemill/oncemill"
)

// A Ledger counts the runs of each payment. The zero value is ready.
type Ledger struct {
	mu   sync.Mutex
	runs map[string]int
}

// Add counts a run, and returns how many there are of this payment.
func (l *Ledger) Add(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = map[string]int{}
	}
	l.runs[id]++
	return l.runs[id]
}

// Count returns how many runs there were of a payment.
func (l *Ledger) Count(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs[id]
}

// Total returns how many runs there were.
func (l *Ledger) Total() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.runs {
		n += r
	}
	return n
}

// Charge is a handler that has an effect and says which.
func (l *Ledger) Charge(w http.ResponseWriter, r *http.Request) {
	run := oncemill.FromContext(r.Context())
	l.Add(run.Key.ID)
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Location", "/payments/"+run.ID("payments"))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	w.Write(append([]byte("charged "), bytes.TrimSpace(body)...))
}

// GivingUp is a handler whose first run waits for something until its context ends, and then returns without a word.
func GivingUp(begun chan struct{}, before, after func(r *http.Request) error) http.HandlerFunc {
	var runs atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		first := runs.Add(1) == 1
		if err := before(r); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		if first {
			close(begun)
			<-r.Context().Done()
			return
		}
		if err := after(r); err != nil {
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, "paid")
	}
}

// Short is a handler that announces more than it writes, such as one that copies what a broken connection gave it.
func Short(l *Ledger) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		l.Add("")
		w.Header().Set("Content-Length", "20")
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"amount":10`)
	}
}

// Leave sends the payment of [Rig.Pay] under the key k, and goes when it is being processed.
func Leave(t *testing.T, rg *Rig, begun <-chan struct{}) {
	t.Helper()
	conn, err := net.Dial("tcp", rg.Server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn,
		"POST "+Route+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 14\r\n\r\n"+`{"amount":100}`)
	<-begun
	conn.Close()
}

// Retried repeats the payment of Leave until it is neither in progress nor unavailable.
func Retried(t *testing.T, rg *Rig) (a Answer) {
	t.Helper()
	Until(t, "the key is free again", func() bool { a = rg.Pay("k"); return a.Status != 409 && a.Status != 503 })
	return a
}
