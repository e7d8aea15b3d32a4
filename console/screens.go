package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

func (c *Console) overview(w http.ResponseWriter, r *http.Request, v *visitor) error {
	snap := c.now()
	body, err := c.livePart(snap, "overview", nil)
	if err != nil {
		return err
	}
	return c.render(w, v, "overview", &page{
		Title: "Overview", At: "overview", Live: string(link("live", "screen", "overview")), Snap: snap, Now: body.Now,
		Body: body,
	})
}

func (c *Console) health(w http.ResponseWriter, r *http.Request, v *visitor) error {
	snap := c.now()
	body, err := c.livePart(snap, "health", nil)
	if err != nil {
		return err
	}
	return c.render(w, v, "health", &page{
		Title: "Health", At: "health", Live: string(link("live", "screen", "health")), Snap: snap, Now: body.Now,
		Body: struct {
			*livePart
			Configured bool
		}{body, c.hasDoctor()},
	})
}

// log shows who changed what, the last change first.
func (c *Console) log(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	c.mu.Lock()
	all := slices.Clone(c.made)
	c.mu.Unlock()
	if c.config.Log != nil {
		var err error
		if all, err = c.config.Log(ctx); err != nil {
			return err
		}
	}
	slices.SortStableFunc(all, func(a, b Entry) int { return b.Time.Compare(a.Time) })
	return c.render(w, v, "log", &page{Title: "Log", At: "log", Body: all[:min(mostLogged, len(all))]})
}

// A listing is a screen with records.
type listing struct {
	Stores []Store
	Query  *query
	Found  *found
	States []string
	Ages   []string
	Rows   []boxRows // of the ID that was looked for
	Boxes  []Outbox  // where else what was looked for may be, if it is an order key
	Topics []DeadLetterTopic
}

// A boxRows are the rows of an outbox.
type boxRows struct {
	Name string
	Rows []outbox.RowInfo
	More bool
}

func (c *Console) messages(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	p := &page{Title: "Messages", At: "messages", Now: time.Now()}
	q, err := readQuery(r.URL.Query(), p.Now)
	if err != nil {
		return err
	}
	body := &listing{Stores: c.config.Stores, Query: q, States: states, Ages: ages, Boxes: c.config.Outboxes,
		Topics: c.config.DeadLetters}
	p.Body = body
	if len(c.config.Stores) > 0 {
		s, err := c.store(q.In)
		if err != nil {
			return err
		}
		q.In = s.Name
		if body.Found, err = c.find(ctx, s, q, pageSize, budget); err != nil {
			return err
		}
	}
	if q.ID != "" && q.after == "" {
		if body.Rows, err = c.rowsWithID(ctx, q.ID); err != nil {
			return err
		}
	}
	return c.render(w, v, "messages", p)
}

// rowsWithID returns the rows of a message in all outboxes.
func (c *Console) rowsWithID(ctx context.Context, id string) (all []boxRows, err error) {
	for _, o := range c.config.Outboxes {
		rows, more, err := rowsOf(ctx, o.Inspector, outbox.Filter{ID: id}, pageSize, budget,
			func(*outbox.RowInfo) bool { return true })
		if err != nil {
			return nil, err
		}
		if len(rows) > 0 || more {
			all = append(all, boxRows{o.Name, rows, more})
		}
	}
	return all, nil
}

// A messageView is the screen of a message.
type messageView struct {
	In          string
	Key         string
	Record      *dedupstore.Record
	Story       explain.Story
	Events      []event
	Rows        []boxRows
	Others      []dedupstore.Record // the same ID in other scopes
	Trace       string
	TraceID     string
	TraceSearch string
	Note        *Note
	Offers      []offer
}

// An event of a message's timeline.
type event struct {
	At   time.Time
	What string
	Tone string
}

// An offer is an action on the message.
type offer struct {
	Do     Action
	What   string
	Topics []string // of a redrive: one of them has the letter
}

func (c *Console) message(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	s, err := c.store(r.FormValue("in"))
	if err != nil {
		return err
	}
	key, err := dedupstore.ParseKey(r.FormValue("key"))
	if err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	records, err := s.Inspector.Look(ctx, []dedupstore.Key{key})
	if err != nil {
		return err
	}
	now := time.Now()
	rec := &records[0]
	if !v.may[Payloads] {
		rec.Outcome.Result = nil
	}
	if len(rec.Outcome.Result) > 0 {
		c.sawPayload(r, v, s.Name, key.String())
	}
	m := &messageView{
		In: s.Name, Key: key.String(), Record: rec, Note: c.config.Notes.of(s.Name, rec),
		TraceSearch: traceLink(c.config.TraceSearch, "id", key.ID),
		Story:       explain.Tell(rec, now, explain.Others(ctx, s.Inspector, key)),
	}
	if parts := strings.Split(rec.Trace, "-"); len(parts) == 4 { // a traceparent
		m.TraceID = parts[1]
		m.Trace = traceLink(c.config.Trace, "trace", m.TraceID)
	}
	if m.Rows, err = c.rowsWithID(ctx, key.ID); err != nil {
		return err
	}
	m.Events = timeline(rec, m.Story, m.Rows)
	others, err := c.lookUp(ctx, s, &query{Filter: dedupstore.Filter{ID: key.ID}})
	if err != nil {
		return err
	}
	messages := explain.MessagesOf(records)
	for _, o := range others {
		if o.Key != key && !messages.HaveStep(o.Key) {
			m.Others = append(m.Others, o)
		}
	}
	m.Offers = c.offers(m, v)
	return c.render(w, v, "message", &page{Title: key.ID, At: "messages", Now: now, Body: m})
}

// offers are the actions that the story knows and the visitor may do.
func (c *Console) offers(m *messageView, v *visitor) (all []offer) {
	for _, a := range m.Story.Actions {
		do := Action(a.Verb)
		if a.Verb == "dlq redrive" {
			if topics := c.topicsOf([]dedupstore.Record{*m.Record}); v.may[Redrive] && len(topics) > 0 {
				all = append(all, offer{Redrive, a.What, topics})
			}
			continue
		}
		if v.may[do] {
			all = append(all, offer{Do: do, What: a.What})
		}
	}
	kind := m.Record.Outcome.Kind
	if v.may[Restore] && m.Note != nil {
		all = append(all, offer{Do: Restore, What: "take the note back: Failures shows it again"})
	}
	if v.may[Archive] && m.Note == nil && (kind == dedupstore.Failed || kind == dedupstore.Unknown) {
		all = append(all, offer{Do: Archive,
			What: "put it aside with a note: Failures shows it no more, unless it fails again"})
	}
	return all
}

// timeline is what is known of a message, from the outbox to its duplicates.
func timeline(r *dedupstore.Record, story explain.Story, boxes []boxRows) (all []event) {
	for _, b := range boxes {
		for i := range b.Rows {
			row := &b.Rows[i]
			all = append(all, event{row.Written, "written to the outbox " + b.Name + ", for " + row.Topic, "quiet"})
			switch row.State {
			case outbox.Published:
				all = append(all, event{row.Ended, "published to " + row.Topic, "good"})
			case outbox.Dead:
				all = append(all, event{row.Ended, "dead in the outbox: " + row.Error, "bad"})
			}
		}
	}
	for i, e := range story.Events {
		class := "quiet"
		switch {
		case strings.HasPrefix(e.What, "claimed by"):
			class = "busy"
		case strings.HasPrefix(e.What, "the run ended"), strings.HasPrefix(e.What, "taken over"),
			strings.HasPrefix(e.What, "its lease ended"):
			class = "wait"
		case i == len(story.Events)-1 || e.At.Equal(r.Ended):
			class = tone(r.Outcome.Kind)
		}
		if strings.Contains(e.What, "duplicate") {
			class = "quiet"
		}
		all = append(all, event{e.At, e.What, class})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.At.Compare(b.At) })
	// Clocks of others, in ms, tell when duplicates came: none got an outcome before it was there.
	came := slices.IndexFunc(all, func(e event) bool { return strings.Contains(e.What, "duplicate") })
	for ; came >= 0 && came+1 < len(all) && all[came+1].At.Sub(all[came].At) < time.Second; came++ {
		all[came], all[came+1] = all[came+1], all[came]
	}
	return all
}

// A failingView is the screen of failures.
type failingView struct {
	*livePart
	Stores   []Store
	Topics   []DeadLetterTopic
	Find     letterQuery // the letters that are listed
	List     *letterPage
	Query    *query // a group's
	Found    *found
	Letters  []string // the topics that have the letters of those
	Archived bool     // the archived ones are listed
	Tasks    []*taskView
}

func (c *Console) failures(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	p := &page{Title: "Failures", At: "failures", Snap: c.now(), Now: time.Now()}
	body := &failingView{
		livePart: &livePart{Snap: p.Snap, Now: p.Now, Running: c.running.Load()}, Stores: c.config.Stores,
		Topics: c.config.DeadLetters, Find: readLetterQuery(r), Tasks: c.recent(),
	}
	p.Body = body
	q, err := readQuery(r.URL.Query(), p.Now)
	if err != nil {
		return err
	}
	body.Query = q
	if len(c.config.Stores) > 0 {
		s, err := c.store(q.In)
		if err != nil {
			return err
		}
		q.In = s.Name
		body.Store = p.Snap.store(s.Name)
		switch {
		case r.FormValue("archived") != "":
			body.Archived = true
			records, err := s.Inspector.Look(ctx, c.config.Notes.keys(s.Name))
			if err != nil {
				return err
			}
			body.Found = &found{Records: slices.DeleteFunc(records, func(r dedupstore.Record) bool {
				return c.config.Notes.of(s.Name, &r) == nil // it has run since, or is gone
			})}
			slices.SortFunc(body.Found.Records, operate.LastFirst)
			body.Found.To = len(body.Found.Records)
		case q.Pattern != "" || q.State != "" || r.FormValue("list") != "":
			q.State = cmp.Or(q.State, openFailures)
			if len(q.Kinds) == 0 {
				q.Kinds = failed
			}
			if body.Found, err = c.find(ctx, s, q, pageSize, budget); err != nil {
				return err
			}
			body.Letters = c.topicsOf(body.Found.Records)
		default:
			p.Live = string(link("live", "screen", "failures", "in", s.Name))
		}
	}
	if body.Find.Topic != "" {
		if body.List, err = c.listLetters(ctx, body.Find); err != nil {
			return err
		}
		p.Live = ""
	}
	return c.render(w, v, "failures", p)
}

// sawPayload says in the log who was shown what nobody sees without a right.
func (c *Console) sawPayload(r *http.Request, v *visitor, in, what string) {
	c.config.Logger.InfoContext(r.Context(), "console: payload shown", "who", v.Who, "in", in, "what", what)
}

// An outboxView is the screen of an outbox.
type outboxView struct {
	*livePart
	Boxes  []Outbox
	In     string
	State  string
	Topic  string
	ID     string
	Key    string // of order
	Rows   []outbox.RowInfo
	Looked int // at so many rows
	Next   string
	States []string
	Replay bool // it can
	Tasks  []*taskView
}

var rowStates = []string{"dead", "pending", "delayed", "leased", "published"}

func (c *Console) outbox(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	p := &page{Title: "Outbox", At: "outbox", Snap: c.now(), Now: time.Now()}
	body := &outboxView{
		livePart: &livePart{Snap: p.Snap, Now: p.Now, Running: c.running.Load()}, Boxes: c.config.Outboxes,
		State: cmp.Or(r.FormValue("state"), "dead"), Topic: r.FormValue("topic"),
		ID: strings.TrimSpace(r.FormValue("id")), Key: r.FormValue("key"),
		States: rowStates, Tasks: c.recent(),
	}
	p.Body = body
	if len(c.config.Outboxes) == 0 {
		return c.render(w, v, "outbox", p)
	}
	o, err := c.box(r.FormValue("in"))
	if err != nil {
		return err
	}
	body.In, body.Outbox = o.Name, p.Snap.outbox(o.Name)
	_, body.Replay = o.Inspector.(outbox.Replayer)
	p.Live = string(link("live", "screen", "outbox", "in", o.Name))
	f := outbox.Filter{Topic: body.Topic, ID: body.ID}
	if body.State != "all" {
		f.States = []outbox.State{outbox.State(body.State)}
	}
	if err := f.Validate(); err != nil {
		return refuse(http.StatusBadRequest, err)
	}
	for end, after := time.Now().Add(budget), r.FormValue("after"); ; {
		list, err := o.Inspector.List(ctx, f, after)
		if err != nil {
			return err
		}
		for _, row := range list.Rows {
			if body.Key == "" || row.Key == body.Key {
				body.Rows = append(body.Rows, row)
			}
		}
		body.Looked += list.Looked
		if after = list.Next; after == "" {
			break
		}
		if len(body.Rows) >= pageSize || time.Now().After(end) {
			body.Next = string(link("outbox", "in", o.Name, "state", body.State, "topic", body.Topic, "id", body.ID,
				"key", body.Key, "after", after))
			break
		}
	}
	return c.render(w, v, "outbox", p)
}
