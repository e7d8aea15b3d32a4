package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestParts_StopInReverseOrderEachAfterTheOther(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p, ended := New(ctx), []string{} // no lock: only one part ends at a time
	for _, name := range []string{"cleaning", "relay", "orders"} {
		p.Start(name, func(ctx context.Context) error {
			<-ctx.Done()
			ended = append(ended, name)
			return ctx.Err() // as some do
		})
	}
	cancel()
	<-p.Done()
	if len(ended) > 0 {
		t.Errorf("%q have ended before Stop", ended)
	}
	if err := p.Stop(); err != nil || !slices.Equal(ended, []string{"orders", "relay", "cleaning"}) {
		t.Errorf("%q, %v", ended, err)
	}
}

func TestParts_OneThatEndsIsNamed(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, err := range []error{broken, nil} {
		p := New(t.Context())
		p.Start("admin", func(ctx context.Context) error { <-ctx.Done(); return nil })
		p.Start("relay", func(context.Context) error { return err })
		<-p.Done()
		got := p.Stop()
		if !strings.Contains(fmt.Sprint(got), "relay has ended") || errors.Is(got, broken) != (err != nil) {
			t.Errorf("%v", got)
		}
	}
}

// listen returns a listener on a free port of the loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// begin sends a part of a request, and waits until the handler has it.
func begin(t *testing.T, l net.Listener, begun chan struct{}) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprint(conn, "POST /payments HTTP/1.1\r\nHost: shop\r\nContent-Length: 2\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	<-begun
	return conn
}

func TestHTTP_FinishesTheRequestsThatItHas(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	l, p := listen(t), New(t.Context())
	p.Start("http", HTTP(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "read %s", body)
	})))
	conn := begin(t, l, begun)
	stopped := make(chan error, 1)
	go func() { stopped <- p.Stop() }()
	for other, err := net.Dial("tcp", l.Addr().String()); err == nil; { // until it refuses connections
		other.Close()
		other, err = net.Dial("tcp", l.Addr().String())
	}
	fmt.Fprint(conn, "}")
	if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "read {}") {
		t.Errorf("the request that had begun got %q, %v", answer, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestHTTP_ClientThatNeverEndsItsRequestHoldsNothingUp(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	l, p := listen(t), New(t.Context())
	p.Start("http", HTTP(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		io.ReadAll(r.Body) // which does not end
	})))
	begin(t, l, begun)
	if err := p.Stop(); err != nil {
		t.Errorf("the server had to be cut off: %v", err)
	}
}

func TestHTTP_BrokenListenerEndsIt(t *testing.T) {
	t.Parallel()
	l, p := listen(t), New(t.Context())
	l.Close()
	p.Start("http", HTTP(l, http.NotFoundHandler()))
	<-p.Done()
	if err := p.Stop(); err == nil {
		t.Error("no error")
	}
}
