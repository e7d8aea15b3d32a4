package idempotencykey

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"time"
)

// A streamer is a recorder whose response may leave before the run is over.
type streamer struct{ *recorder }

// FlushError sends what has been written. It is still kept, up to the limit.
func (s *streamer) FlushError() error {
	if s.lost == lostHijacked {
		return http.ErrHijacked
	}
	s.WriteHeader(http.StatusOK)
	s.pass()
	err := http.NewResponseController(s.to).Flush()
	if s.goesOn() && !errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// Flush implements http.Flusher.
func (s *streamer) Flush() { s.FlushError() } //nolint:errcheck // the interface has no error

// Hijack implements http.Hijacker. A header that has been written leaves before, as in net/http; what is sent then is not kept.
func (s *streamer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if s.status != 0 {
		s.pass()
	}
	conn, rw, err := http.NewResponseController(s.to).Hijack()
	if err == nil {
		s.lost = lostHijacked
	}
	return conn, rw, err
}

// SetReadDeadline is what http.ResponseController calls.
func (rec *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(rec.to).SetReadDeadline(t)
}

// SetWriteDeadline is what http.ResponseController calls.
func (rec *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(rec.to).SetWriteDeadline(t)
}

// EnableFullDuplex is what http.ResponseController calls.
func (rec *recorder) EnableFullDuplex() error {
	return http.NewResponseController(rec.to).EnableFullDuplex()
}
