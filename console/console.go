package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/oncemill/oncemill/dedupstore"
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
	letters letterPages
	reading atomic.Int64  // plans that read letters, or wait for that
	turns   chan struct{} // has one for each that reads

	mu     sync.Mutex
	held   map[string]int // live streams by person
	made   []Entry        // the last changes
	seen   seen           // what the loop sampled last
	latest *snapshot      // what live streams show
	plans  []*plan        // oldest first
	tasks  []*task        // oldest first
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
		queue: make(chan *task, mostQueued), turns: make(chan struct{}, mostReading),
		wake: map[string]chan struct{}{}, held: map[string]int{},
	}
	c.letters.forget()
	rand.Read(c.secret)
	for _, s := range config.Stores {
		c.seen.Stores = append(c.seen.Stores, &storeSeen{Name: s.Name})
		c.wake[s.Name] = make(chan struct{}, 1)
	}
	for _, o := range config.Outboxes {
		c.seen.Outboxes = append(c.seen.Outboxes, &outboxSeen{Name: o.Name})
	}
	c.tasks = tasksOf(config.Notes)
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
	"log":      {page: (*Console).log},
	"plan":     {page: (*Console).showPlan, form: (*Console).makePlan},
	"act":      {form: (*Console).act},
	"task":     {page: (*Console).showTask},
	"stop":     {form: (*Console).stop},
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
		v := &visitor{}
		if err := c.serve(w, r, v); err != nil {
			c.sorry(w, r, v, err)
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
	errMethod = errors.New("the page is not asked for in this way")
	errLarge  = errors.New("the form is larger than a megabyte: choose fewer things at once")
	errText   = errors.New("what was asked for is no text in UTF-8")
)

// routeOf is the last segment of a path.
func routeOf(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// serves reports whether the console is meant by a host that a browser names.
func (c *Console) serves(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil ||
		slices.Contains(c.config.Hosts, "*") || slices.Contains(c.config.Hosts, host)
}

func (c *Console) serve(w http.ResponseWriter, r *http.Request, v *visitor) error {
	path := r.URL.Path
	name := routeOf(path)
	if !c.serves(r.Host) {
		return refuse(http.StatusForbidden, fmt.Errorf("the console is not served under the name %q: see Config.Hosts",
			r.Host))
	}
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
	if err := c.admit(r, v); err != nil {
		return refuse(http.StatusForbidden, err)
	}
	c.asked.Store(time.Now().UnixMilli())
	if err := readForm(w, r); err != nil {
		return err
	}
	if r.Method == http.MethodPost {
		if err := c.guard.Check(r); err != nil {
			return refuse(http.StatusForbidden, err)
		}
		if !c.genuine(r, v) {
			return refuse(http.StatusForbidden, errToken)
		}
	}
	v.session = c.session(w, r, v)
	return do(c, w, r, v)
}

// formTimeout is how long a body may take.
const formTimeout = 10 * time.Second

// readForm reads what a page is asked for with.
func readForm(w http.ResponseWriter, r *http.Request) (err error) {
	if r.Method == http.MethodPost {
		to := http.NewResponseController(w)
		_ = to.SetReadDeadline(time.Now().Add(formTimeout)) // what cannot have one waits longer
		defer func() {
			if err == nil { // else the server waits for the rest of the body, and not for ever
				_ = to.SetReadDeadline(time.Time{})
			}
		}()
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	}
	err = r.ParseForm()
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return refuse(http.StatusRequestEntityTooLarge, errLarge)
	}
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	for _, values := range r.Form {
		if !utf8.ValidString(strings.Join(values, "")) {
			return refuse(http.StatusBadRequest, errText)
		}
	}
	return nil
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

// sorry shows an error, where it happened, to whom it happened.
func (c *Console) sorry(w http.ResponseWriter, r *http.Request, v *visitor, err error) {
	status := http.StatusBadGateway // a server that is looked into did not answer
	if _, wrong := errors.AsType[*dedupstore.InvalidError](err); wrong {
		status = http.StatusBadRequest
	}
	if known, ok := errors.AsType[*statusError](err); ok {
		status = known.status
	}
	if r.Context().Err() != nil {
		return
	}
	p := &page{Title: http.StatusText(status), Now: time.Now(), visitor: v}
	body := struct{ Text, Again string }{Text: err.Error()}
	switch p.At = routeOf(r.URL.Path); p.At {
	case "":
		p.At = "overview"
	case "message":
		p.At = "messages"
	case "letter", "plan", "task":
		p.At = "failures"
	}
	if status >= http.StatusInternalServerError && r.Method == http.MethodGet {
		body.Again = "./" + routeOf(r.URL.Path) + "?" + r.URL.RawQuery
	}
	p.Body = body
	var b bytes.Buffer
	_ = pages["sorry"].ExecuteTemplate(&b, "layout", p) // it has what it needs
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(plain(b.Bytes())) // a client that is gone cannot be told
}

// within bounds what a page waits for.
func within(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), 10*time.Second)
}
