package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	maxBody  = 64 << 10
	stopTime = 10 * time.Second // how long requests that have begun may take once a server is told to stop
)

// takePayments is the service: POST /payments. Clients repeat a request until it has an answer below 500.
func takePayments(db database, topic string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var p payment
		if err == nil {
			p, err = parsePayment(body)
		}
		if err != nil {
			answer(w, http.StatusBadRequest, err.Error())
			return
		}
		placed, err := db.place(r.Context(), p, topic)
		switch {
		case errors.Is(err, errOther):
			answer(w, http.StatusConflict, err.Error())
		case err != nil:
			slog.WarnContext(r.Context(), "payment was not taken", "id", p.ID, "error", err)
			w.Header().Set("Retry-After", "1")
			answer(w, http.StatusServiceUnavailable, "try again")
		case placed:
			db.outbox().Wake() // a relay of this process publishes now what was committed
			answer(w, http.StatusCreated, "taken")
		default:
			answer(w, http.StatusOK, "taken before")
		}
	})
	return mux
}

// answer writes a small JSON object. A client that is gone asks again.
func answer(w http.ResponseWriter, status int, says string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"says": says})
}

// serve answers requests until ctx ends, and finishes those that have begun.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler:     h,
		ReadTimeout: 5 * time.Second, // less than stopTime: a client that never ends its body holds nothing up
		IdleTimeout: 2 * time.Minute, // longer than proxies keep connections, or they send requests into those that close; else it were ReadTimeout
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	err := srv.Shutdown(grace)
	if err != nil {
		err = errors.Join(err, srv.Close()) // requests that take too long are cut off, and their clients ask again
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
