package main

import (
	"bytes"
	"net"
	"testing"
)

// A recorder keeps what is written to it.
type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) { return r.Buffer.Write(p) }
func (r *recorder) Read(p []byte) (int, error)  { return r.Buffer.Read(p) }

func TestLosingConn_LosesEverySecondAckAndNothingElse(t *testing.T) {
	t.Parallel()
	const given = "PUB $JS.ACK.s.c.1.1.1.5.0 4\r\n+ACK\r\nPUB $JS.ACK.s.c.1.2.2.5.0 4\r\n+WPI\r\nPUB orders 4\r\n+ACK\r\nPUB $JS.ACK.s.c.1.3.3.5.0 4\r\n+ACK\r\nPING\r\n"
	const want = "PUB $JS.ACK.s.c.1.1.1.5.0 4\r\n+ACK\r\nPUB $JS.ACK.s.c.1.2.2.5.0 4\r\n+WPI\r\nPUB orders 4\r\n+ACK\r\nPUB LOST.AC.s.c.1.3.3.5.0 4\r\n+ACK\r\nPING\r\n"
	var r recorder
	text := []byte(given)
	n, err := (&losingConn{Conn: &r, every: 2}).Write(text)
	if err != nil || n != len(given) || r.String() != want || string(text) != given {
		t.Errorf("%d, %v, sent %q, want %q; what was given is now %q", n, err, r.String(), want, text)
	}
}
