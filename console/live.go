package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"
)

const (
	mostStreams    = 1000
	mostHeld       = 250              // streams of a person, or of an address if nobody knows who it is
	streamPatience = 15 * time.Second // for a client that does not read
	askAgain       = time.Minute      // whether the viewer still may
)

var (
	errNotRunning = errors.New("Console.Run does not run: nothing is sampled, and nothing can be changed")
	errStreams    = errors.New("too many live streams are open")
)

// A livePart is what the live part of a screen shows.
type livePart struct {
	Snap    *snapshot
	Now     time.Time
	Running bool // the loop runs
	Store   *storeSeen
	Outbox  *outboxSeen
	Task    *taskView

	name string // by screen and source
	task *task
}

// Stale is when the figures were sampled, if that is some time ago: nobody looked since. Zero: they are fresh.
func (p *livePart) Stale() (oldest time.Time) {
	see := func(at time.Time) {
		if !at.IsZero() && p.Now.Sub(at) > idleAfter && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	for _, s := range p.Snap.Stores {
		see(s.At)
	}
	for _, o := range p.Snap.Outboxes {
		see(o.At)
	}
	return oldest
}

// livePart finds what a live part shows, without asking a store.
func (c *Console) livePart(snap *snapshot, screen string, q url.Values) (*livePart, error) {
	p := &livePart{Snap: snap, Now: snap.At, Running: c.running.Load(), name: screen}
	if !p.Running {
		p.Now = time.Now()
	}
	switch screen {
	case "overview", "health":
	case "failures":
		s, err := c.store(q.Get("in"))
		if err != nil {
			return nil, err
		}
		p.Store, p.name = snap.store(s.Name), screen+"\x00"+s.Name
	case "outbox":
		o, err := c.box(q.Get("in"))
		if err != nil {
			return nil, err
		}
		p.Outbox, p.name = snap.outbox(o.Name), screen+"\x00"+o.Name
	case "task":
		if p.task = c.task(q.Get("id")); p.task == nil {
			return nil, refuse(http.StatusNotFound, errNoTask)
		}
		p.Now, p.name = time.Now(), screen+"\x00"+p.task.ID
	default:
		return nil, refuse(http.StatusNotFound, errNoPage)
	}
	return p, nil
}

func (s *snapshot) store(name string) *storeSeen {
	return s.Stores[slices.IndexFunc(s.Stores, func(one *storeSeen) bool { return one.Name == name })]
}

func (s *snapshot) outbox(name string) *outboxSeen {
	return s.Outboxes[slices.IndexFunc(s.Outboxes, func(one *outboxSeen) bool { return one.Name == name })]
}

// live sends the live part of a screen whenever there is a new one. It starts nothing: all streams wait for the loop.
func (c *Console) live(w http.ResponseWriter, r *http.Request, v *visitor) error {
	defer c.hold(v.person, -1)
	if all, held := c.hold(v.person, 1); all > mostStreams || held > mostHeld {
		c.config.Logger.WarnContext(r.Context(), "console: too many live streams", "person", v.person, "held", held)
		return refuse(http.StatusServiceUnavailable, errStreams)
	}
	if !c.running.Load() {
		return refuse(http.StatusServiceUnavailable, errNotRunning)
	}
	q := r.URL.Query()
	screen := q.Get("screen")
	to := http.NewResponseController(w)
	allowed := time.Now()
	for first := true; ; first = false {
		snap := c.now()
		if snap.last || r.Context().Err() != nil {
			return nil
		}
		if time.Since(allowed) > askAgain {
			if _, err := c.config.Authorize(r, View); err != nil {
				return nil // the page says why when it asks again
			}
			allowed = time.Now()
		}
		p, err := c.livePart(snap, screen, q)
		var html []byte
		if err == nil {
			html, err = snap.part(p.name, func() ([]byte, error) {
				within, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), lookTimeout)
				defer cancel()
				return c.event(within, p, screen)
			})
		}
		switch {
		case err != nil && first:
			return err
		case err != nil:
			return nil
		case first:
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("X-Accel-Buffering", "no")
		}
		_ = to.SetWriteDeadline(time.Now().Add(streamPatience)) // what cannot have one waits longer
		if _, err := w.Write(html); err != nil {
			return nil // the client is gone
		}
		if err := to.Flush(); err != nil {
			return nil // the client is gone
		}
		select {
		case <-snap.next:
		case <-r.Context().Done():
		}
	}
}

// hold counts the streams of a person.
func (c *Console) hold(person string, n int) (all int64, held int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[person] += n; c.held[person] == 0 {
		delete(c.held, person)
	}
	return c.streams.Add(int64(n)), c.held[person]
}

// event is a live part as a server-sent event.
func (c *Console) event(ctx context.Context, p *livePart, screen string) ([]byte, error) {
	if p.task != nil {
		p.Task = c.viewTask(ctx, p.task)
	}
	var b, event bytes.Buffer
	if err := pages[screen].ExecuteTemplate(&b, "live", p); err != nil {
		return nil, err
	}
	for line := range bytes.Lines(bytes.ReplaceAll(plain(b.Bytes()), []byte("\r"), nil)) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			event.WriteString("data: ")
			event.Write(line)
			event.WriteByte('\n')
		}
	}
	event.WriteByte('\n')
	return event.Bytes(), nil
}

// refresh makes the loop look at something now.
func (c *Console) refresh(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	if !c.running.Load() {
		return refuse(http.StatusServiceUnavailable, errNotRunning)
	}
	switch r.PostFormValue("what") {
	case "findings": // at once, if the last ones are not new
		c.hurry(findingsSource)
		seeOther(w, "health")
	case "failures":
		s, err := c.store(r.PostFormValue("in"))
		if err != nil {
			return err
		}
		c.hurry(s.Name)
		seeOther(w, string(link("failures", "in", s.Name)))
	default:
		return refuse(http.StatusNotFound, errNoPage)
	}
	return nil
}
