package shop

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

func TestServe_ClientThatNeverEndsItsRequestHoldsNothingUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	begun, served := make(chan struct{}), make(chan error, 1)
	go func() {
		slow := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			io.ReadAll(r.Body) // which does not end
		})
		served <- Serve(ctx, l, slow, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	}()
	slow, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := fmt.Fprint(slow, "POST /payments HTTP/1.1\r\nHost: shop\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	<-begun
	stop()
	if err := <-served; err != nil {
		t.Errorf("the server had to be cut off: %v", err)
	}
}
