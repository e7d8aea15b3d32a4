package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"
)

const (
	mostStreams    = 1000
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
}

// livePart finds what a live part shows.
func (c *Console) livePart(ctx context.Context, snap *snapshot, screen string, q url.Values) (*livePart, error) {
	p := &livePart{Snap: snap, Now: snap.At, Running: c.running.Load()}
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
		p.Store = snap.store(s.Name)
	case "outbox":
		o, err := c.box(q.Get("in"))
		if err != nil {
			return nil, err
		}
		p.Outbox = snap.outbox(o.Name)
	case "task":
		t := c.task(q.Get("id"))
		if t == nil {
			return nil, refuse(http.StatusNotFound, errNoTask)
		}
		p.Task, p.Now = c.viewTask(ctx, t), time.Now()
	default:
		return nil, refuse(http.StatusNotFound, errNoPage)
	}
	return p, nil
}

func (s *snapshot) store(name string) *storeSeen {
	for _, one := range s.Stores {
		if one.Name == name {
			return one
		}
	}
	return nil
}

func (s *snapshot) outbox(name string) *outboxSeen {
	for _, one := range s.Outboxes {
		if one.Name == name {
			return one
		}
	}
	return nil
}

// live sends the live part of a screen whenever there is a new one. It starts nothing: all streams wait for the loop.
func (c *Console) live(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	defer c.streams.Add(-1)
	if c.streams.Add(1) > mostStreams {
		return refuse(http.StatusServiceUnavailable, errStreams)
	}
	if !c.running.Load() {
		return refuse(http.StatusServiceUnavailable, errNotRunning)
	}
	q := r.URL.Query()
	screen := q.Get("screen")
	name := screen + "\x00" + q.Get("in") + "\x00" + q.Get("id")
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
		html, err := snap.part(name, func() ([]byte, error) {
			within, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), lookPatience)
			defer cancel()
			return c.event(within, snap, screen, q)
		})
		if err != nil && first {
			return err
		}
		if err != nil {
			return nil
		}
		if first {
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

// event is a live part as a server-sent event.
func (c *Console) event(ctx context.Context, snap *snapshot, screen string, q url.Values) ([]byte, error) {
	p, err := c.livePart(ctx, snap, screen, q)
	if err != nil {
		return nil, err
	}
	var b, event bytes.Buffer
	if err := pages[screen].ExecuteTemplate(&b, "live", p); err != nil {
		return nil, err
	}
	for line := range bytes.Lines(bytes.ReplaceAll(b.Bytes(), []byte("\r"), nil)) {
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
	case "findings":
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
