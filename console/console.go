package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

//go:embed assets/console.css assets/console.js assets/console.svg
var assets embed.FS

// A Console shows what happened to messages, and mends what failed. It is safe for concurrent use.
type Console struct {
	config Config
	secret []byte // of tokens
	guard  *http.CrossOriginProtection

	running atomic.Bool
	asked   atomic.Int64 // when somebody looked last, in Unix ms
	streams atomic.Int64

	mu     sync.Mutex
	seen   seen      // what the loop sampled last
	latest *snapshot // what live streams show
	plans  []*plan   // oldest first
	tasks  []*task   // oldest first
	queue  chan *task
	wake   map[string]chan struct{} // by source: look now
}

// New makes a Console. It asks nobody yet.
func New(config Config) (*Console, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, err
	}
	c := &Console{
		config: config, secret: make([]byte, 32), guard: http.NewCrossOriginProtection(),
		queue: make(chan *task, mostQueued), wake: map[string]chan struct{}{},
	}
	rand.Read(c.secret)
	for _, s := range config.Stores {
		c.seen.Stores = append(c.seen.Stores, &storeSeen{Name: s.Name})
		c.wake[s.Name] = make(chan struct{}, 1)
	}
	for _, o := range config.Outboxes {
		c.seen.Outboxes = append(c.seen.Outboxes, &outboxSeen{Name: o.Name})
	}
	c.wake[findingsSource] = make(chan struct{}, 1)
	c.latest = newSnapshot(c.seen, time.Now())
	return c, nil
}

// A route answers requests for the last segment of a path. Forms are POSTs.
type route struct {
	page func(c *Console, w http.ResponseWriter, r *http.Request, v *visitor) error
	form func(c *Console, w http.ResponseWriter, r *http.Request, v *visitor) error
}

var routes = map[string]route{
	"":         {page: (*Console).overview},
	"messages": {page: (*Console).messages},
	"message":  {page: (*Console).message},
	"failures": {page: (*Console).failures},
	"letter":   {page: (*Console).letter},
	"outbox":   {page: (*Console).outbox},
	"health":   {page: (*Console).health},
	"plan":     {page: (*Console).showPlan, form: (*Console).makePlan},
	"act":      {form: (*Console).act},
	"task":     {page: (*Console).showTask},
	"live":     {page: (*Console).live},
	"refresh":  {form: (*Console).refresh},
}

// policy lets a page load nothing but its own style and script, and be framed by nobody.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Handler returns what answers requests. It works under any prefix: see the package's comment.
func (c *Console) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if err := c.serve(w, r); err != nil {
			c.sorry(w, r, err)
		}
	})
}

// A statusError is an error with the status of its answer.
type statusError struct {
	status int
	error
}

func (e *statusError) Unwrap() error { return e.error }

func refuse(status int, err error) error { return &statusError{status, err} }

var (
	errNoPage = errors.New("there is no such page")
	errNoID   = errors.New("this dead letter has no ID, by which it could be shown")
	errMethod = errors.New("the page is not asked for in this way")
)

func (c *Console) serve(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.Path
	name := path[strings.LastIndexByte(path, '/')+1:]
	if strings.HasPrefix(name, "console.") {
		return asset(w, r, name)
	}
	to, ok := routes[name]
	switch {
	case !ok:
		return refuse(http.StatusNotFound, errNoPage)
	case path == "": // http.StripPrefix left nothing; without a slash at the end, relative links would lead elsewhere
		asked, _, _ := strings.Cut(r.RequestURI, "?")
		if last := asked[strings.LastIndexByte(asked, '/')+1:]; last != "" {
			seeOther(w, last+"/")
			return nil
		}
	}
	do := to.page
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		do = to.form
	default:
		do = nil
	}
	if do == nil {
		return refuse(http.StatusMethodNotAllowed, errMethod)
	}
	v, err := c.admit(r)
	if err != nil {
		return refuse(http.StatusForbidden, err)
	}
	c.asked.Store(time.Now().UnixMilli())
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		if err := c.guard.Check(r); err != nil {
			return refuse(http.StatusForbidden, err)
		}
		if !c.genuine(r) {
			return refuse(http.StatusForbidden, errToken)
		}
	}
	v.session = session(w, r)
	return do(c, w, r, v)
}

func asset(w http.ResponseWriter, r *http.Request, name string) error {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		return refuse(http.StatusNotFound, errNoPage)
	}
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
	return nil
}

// seeOther leads to a page beside this one. http.Redirect would make it absolute, without the prefix of a proxy.
func seeOther(w http.ResponseWriter, page string) {
	w.Header().Set("Location", page)
	w.WriteHeader(http.StatusSeeOther)
}

// sorry shows an error.
func (c *Console) sorry(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusBadGateway // a server that is looked into did not answer
	var known *statusError
	if errors.As(err, &known) {
		status = known.status
	}
	if r.Context().Err() != nil {
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = pages["sorry"].ExecuteTemplate(w, "layout", &page{ // a client that is gone cannot be told
		Title: http.StatusText(status), Now: time.Now(), Body: err.Error(), visitor: &visitor{},
	})
}

// within bounds what a page waits for.
func within(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), 10*time.Second)
}
