package main

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

//go:embed web
var web embed.FS

var templates = template.Must(template.ParseFS(web, "web/books.html"))

// A window shows the books while they are written. One loop reads them for all who look. It is safe for concurrent use.
type window struct {
	mu      sync.Mutex
	html    template.HTML // the part that changes
	changed chan struct{} // closed when it has
}

// show serves the books at / and the console at /console/ on a free port of the loopback, until stop is called. The
// console may only look: books with an order that somebody has forgotten by hand would not balance.
func (s *story) show(ctx context.Context, records dedupstore.Inspector, out io.Writer) (stop func() error, err error) {
	c, err := console.New(console.Config{
		Stores:   []console.Store{{Name: "oncemill", Inspector: records}},
		Outboxes: []console.Outbox{{Name: "shop", Inspector: s.shop.box}},
		Counters: s.counters, Authorize: console.ViewOnly,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	w := &window{changed: make(chan struct{})}
	if err := w.read(ctx, s); err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", w.page)
	mux.HandleFunc("GET /live", w.live)
	for _, name := range []string{"books.css", "books.js"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, web, "web/"+name)
		})
	}
	mux.Handle("/console/", c.Handler())
	ctx, cancel := context.WithCancel(ctx)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	var served error
	var all sync.WaitGroup
	all.Go(func() { served = srv.Serve(l) })
	all.Go(func() { _ = c.Run(ctx) }) // until ctx ends
	all.Go(func() {
		for shop.Pause(ctx, 500*time.Millisecond) == nil {
			_ = w.read(ctx, s) // or later
		}
	})
	shop.Say(out, "Watch it: http://%s/\n", l.Addr())
	return func() error {
		cancel()
		err := srv.Close()
		all.Wait()
		if !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

// counters are what the console shows of deliveries.
func (s *story) counters(ctx context.Context) (all []console.Counter, err error) {
	claims, err := shop.Claims(ctx, s.metrics)
	for _, c := range claims {
		all = append(all, console.Counter(c))
	}
	return all, err
}

// read reads the books, and wakes those who look if they have changed.
func (w *window) read(ctx context.Context, s *story) error {
	all, err := s.books(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "live", s.view(all)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if html := template.HTML(b.String()); w.html != html {
		w.html = html
		close(w.changed)
		w.changed = make(chan struct{})
	}
	return nil
}

// A view is what the page of the books shows.
type view struct {
	Placed, Orders int
	Closed         bool
	Balances       []bool
	Lines          []line
	Wrong          []wrong // the last first
	More           int     // that are not shown
}

// A wrong is an order that some stack charged twice, lost or charged wrongly, and what came of it in each.
type wrong struct {
	ID, How string
	Key     string // of its record
	Endings []ending
	at      int64
}

func (s *story) view(all report) view {
	const most = 12
	v := view{Placed: all[guarded].Orders, Orders: len(s.fates), Closed: s.closed.Load(), Lines: all.lines()}
	for _, stack := range stacks {
		v.Balances = append(v.Balances, all[stack].balance())
	}
	for id := range all[guarded].endings {
		key := dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: id}
		w := wrong{ID: id, How: string(s.fates[id]), Key: key.String()}
		for _, stack := range stacks {
			e := all[stack].endings[id]
			if w.Endings = append(w.Endings, e); e.Bad() {
				w.at = max(w.at, e.At)
			}
		}
		if slices.ContainsFunc(w.Endings, ending.Bad) {
			v.Wrong = append(v.Wrong, w)
		}
	}
	slices.SortFunc(v.Wrong, func(a, b wrong) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(a.ID, b.ID)) })
	v.More = max(0, len(v.Wrong)-most)
	v.Wrong = v.Wrong[:len(v.Wrong)-v.More]
	return v
}

func (w *window) now() (html template.HTML, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.html, w.changed
}

func (w *window) page(to http.ResponseWriter, _ *http.Request) {
	html, _ := w.now()
	to.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; "+
		"connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'")
	_ = templates.ExecuteTemplate(to, "page", html) // fails if nobody is there any more
}

// live sends the part that changes, now and after each change, until the client leaves.
func (w *window) live(to http.ResponseWriter, r *http.Request) {
	to.Header().Set("Content-Type", "text/event-stream")
	for {
		html, changed := w.now()
		fmt.Fprintf(to, "data: %s\n\n", strings.ReplaceAll(string(html), "\n", "\ndata: "))
		if http.NewResponseController(to).Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
