package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

const (
	mostPlanned = 1000 // records or rows of a plan
	mostPlans   = 200
	mostOwn     = 10 // plans of a person
	planLife    = 10 * time.Minute
	planTimeout = 2 * time.Second // how long a plan looks for records
)

var (
	errNoPlan = errors.New("this plan is gone, or not yours: a plan lives for ten minutes, and is used once")
	errNobody = errors.New("nothing was chosen, or it is gone")
	errReplay = errors.New("this outbox cannot replay")

	errManyReasons = errors.New("these failures have many reasons: choose them in the list")
	errManyRows    = errors.New("the outbox has too many rows to find all of these messages in time: choose a topic " +
		"to replay, or use the command, oncemill outbox")
)

// A plan is what an action would change, as somebody has seen it.
type plan struct {
	id      string
	session string // of the visitor that it was made for
	person  string
	made    time.Time

	Action  Action
	In      string
	About   string // which letters, or which records
	Records []dedupstore.Record
	Rows    []outbox.RowInfo
	Which   DeadLetterFilter
	Foresee []Prediction
	Bound   any    // what Predict returned with that
	Topic   string // of a replay; empty: all

	Counts  []amount // what would change, by scope and state
	Refused []amount // what would not, by reason
	More    bool     // there is more than a plan can have
}

// What says what an action does and what can happen, in a sentence or two.
func (p *plan) What() string {
	switch p.Action {
	case Forget:
		return "Drops the record, and those of its steps. The next delivery runs as a first one, and its effect may " +
			"happen again."
	case Rerun:
		return "Lets the next delivery run again. Outside of an inbox, a second effect is possible. Steps that " +
			"succeeded are kept, and not done again."
	case Complete:
		return "Decides an unknown outcome. Duplicates get it from then on, and nothing runs."
	case Archive:
		return "Puts the failure aside with a note. The record stays as it is; it comes back if it fails again."
	case Restore:
		return "Takes the note back: Failures shows the failure again."
	case Redrive:
		return "Publishes the messages of dead letters to where they came from, so that their handlers run again. " +
			"Every group of the source topic gets them. Outside of an inbox, a second effect is possible. " +
			"It stops if more than a quarter fails again."
	case Requeue:
		return "Makes dead rows pending again: relays publish them at once. A message that is dead in several topics " +
			"is requeued in all of them."
	case Discard:
		return "Removes dead rows for good: their messages are lost. An attempt without an answer may have published " +
			"one all the same."
	default:
		return "Publishes rows once more that were published. Consumers take the copies for duplicates as long as " +
			"their windows last."
	}
}

// N is how many things would change.
func (p *plan) N() int {
	n := 0
	for _, f := range p.Foresee {
		n += f.Run + f.Unknown
	}
	return n + len(p.Records) + len(p.Rows)
}

// Things names what would change.
func (p *plan) Things() string {
	switch p.Action {
	case Redrive:
		return "letter"
	case Requeue, Discard, Replay:
		return "row"
	default:
		return "record"
	}
}

// Key is the only record of the plan; empty if there are several.
func (p *plan) Key() string {
	if len(p.Records) != 1 {
		return ""
	}
	return p.Records[0].Key.String()
}

// allowed reports who it is if they may do this.
func (c *Console) allowed(r *http.Request, a Action) (who string, err error) {
	if who, err = c.config.Authorize(r, a); err != nil {
		return "", refuse(http.StatusForbidden, err)
	}
	return who, nil
}

// makePlan finds what an action would change. It changes nothing.
func (c *Console) makePlan(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p := &plan{
		id: rand.Text(), session: v.session, person: v.person, made: time.Now(), Action: Action(r.PostFormValue("do")),
		In: r.PostFormValue("in"),
	}
	if !slices.Contains(verbs, p.Action) {
		return refuse(http.StatusNotFound, errNoPage)
	}
	if _, err := c.allowed(r, p.Action); err != nil {
		return err
	}
	ctx, cancel := within(r)
	defer cancel()
	var err error
	switch p.Action {
	case Redrive:
		err = c.planLetters(ctx, p, r.PostForm)
	case Requeue, Discard, Replay:
		err = c.planRows(ctx, p, r.PostForm)
	default:
		err = c.planRecords(ctx, p, r.PostForm)
	}
	if err != nil {
		return err
	}
	c.keepPlan(p)
	seeOther(w, string(link("plan", "id", p.id)))
	return nil
}

// keepPlan keeps a plan. Nobody's many plans remove those of others, unless very many people plan at once.
func (c *Console) keepPlan(p *plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own, oldest := 0, 0
	for i := len(c.plans) - 1; i >= 0; i-- {
		if c.plans[i].person == p.person {
			own, oldest = own+1, i
		}
	}
	if own >= mostOwn || len(c.plans) >= mostPlans {
		if own < mostOwn {
			oldest = 0
		}
		c.plans = slices.Delete(c.plans, oldest, oldest+1)
	}
	c.plans = append(c.plans, p)
}

// plan finds a plan of a session; nil if there is none any more.
func (c *Console) plan(id, session string) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.plans {
		if p.id == id && p.session == session && time.Since(p.made) < planLife {
			return p
		}
	}
	return nil
}

// takePlan finds a plan and removes it: it is used once.
func (c *Console) takePlan(p *plan) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.Index(c.plans, p)
	if at >= 0 {
		c.plans = slices.Delete(c.plans, at, at+1)
	}
	return at >= 0
}

// chooseRecords finds the records that a form means, in the store that the plan is for.
func (c *Console) chooseRecords(
	ctx context.Context, p *plan, form url.Values,
) (all []dedupstore.Record, more bool, err error) {
	s, err := c.store(p.In)
	if err != nil {
		return nil, false, err
	}
	p.In = s.Name
	if names := form["key"]; len(names) > 0 {
		var keys []dedupstore.Key
		for _, name := range names[:min(len(names), mostPlanned)] {
			key, err := dedupstore.ParseKey(name)
			if err != nil {
				return nil, false, refuse(http.StatusBadRequest, err)
			}
			keys = append(keys, key)
		}
		all, err = s.Inspector.Look(ctx, keys)
		return all, false, err
	}
	q, err := readQuery(form, time.Now())
	switch {
	case err != nil:
		return nil, false, err
	case !q.Filtered():
		return nil, false, refuse(http.StatusBadRequest, errNobody)
	}
	f, err := c.find(ctx, s, q, mostPlanned, planTimeout)
	if err != nil {
		return nil, false, err
	}
	if q.Handler == "" { // steps go with their messages
		f.Records = slices.DeleteFunc(f.Records, func(r dedupstore.Record) bool { return ids.IsOfStep(r.Key.Handler) })
	}
	return f.Records, f.Next != "", nil
}

func (c *Console) planRecords(ctx context.Context, p *plan, form url.Values) error {
	all, more, err := c.chooseRecords(ctx, p, form)
	if err != nil {
		return err
	}
	p.More = more
	s, err := c.store(p.In)
	if err != nil {
		return err
	}
	if p.Action == Forget {
		if all, err = withSteps(ctx, s.Inspector, all); err != nil {
			return err
		}
	}
	counts, refused := map[[2]string]int64{}, map[string]int64{}
	var kept []dedupstore.Record // messages that need their steps
	for i := range all {
		r := &all[i]
		if explain.IsStepOf(kept, r.Key) {
			refused[operate.ErrNeeded.Error()]++
			continue
		}
		why := p.refuses(r)
		if noted := c.config.Notes.of(s.Name, r) != nil; p.Action == Restore && !noted {
			why = "is not archived"
		}
		if why != "" {
			refused[why]++
			kept = append(kept, *r)
			continue
		}
		r.Outcome.Result = nil // plans keep no payloads
		p.Records = append(p.Records, *r)
		counts[[2]string{r.Key.Group + " / " + r.Key.Handler, operate.StateOf(r)}]++
	}
	for of, n := range counts {
		p.Counts = append(p.Counts, amount{Name: of[0], About: of[1], Tone: tone(of[1]), N: n})
	}
	slices.SortFunc(p.Counts, biggest)
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		p.Refused = append(p.Refused, amount{Name: why, N: refused[why]})
	}
	return nil
}

// withSteps are messages, each with its steps after it.
func withSteps(
	ctx context.Context, store dedupstore.Inspector, all []dedupstore.Record,
) (with []dedupstore.Record, err error) {
	find := explain.StepsIn(store)
	for i := range all {
		if explain.IsStepOf(all, all[i].Key) {
			continue
		}
		var steps []dedupstore.Record
		if steps, err = find.Of(ctx, all[i].Key); err != nil {
			return nil, err
		}
		with = append(append(with, all[i]), steps...)
	}
	return with, nil
}

func biggest(a, b amount) int {
	return cmp.Or(cmp.Compare(b.N, a.N), strings.Compare(a.Name, b.Name), strings.Compare(a.About, b.About))
}

// refuses says why a record would not be changed; empty if it would.
func (p *plan) refuses(r *dedupstore.Record) string {
	var change dedupstore.Change = dedupstore.Forget{}
	switch p.Action {
	case Rerun:
		change = dedupstore.Rerun{}
	case Complete:
		change = dedupstore.Complete{Outcome: dedupstore.Outcome{Kind: dedupstore.Failed}}
	case Archive, Restore:
		if r.Outcome.Kind != dedupstore.Failed && r.Outcome.Kind != dedupstore.Unknown {
			return "is no failure"
		}
		return ""
	}
	err := dedupstore.Refuse(change, *r, *r, time.Now())
	if err == nil {
		return ""
	}
	switch {
	case r.State == dedupstore.Absent:
		return "has no record"
	case r.State != dedupstore.Finished:
		return "is " + string(r.State)
	default:
		return "has " + string(r.Outcome.Kind)
	}
}

func (c *Console) planLetters(ctx context.Context, p *plan, form url.Values) error {
	t, err := c.topic(cmp.Or(form.Get("letters"), p.In))
	if err != nil {
		return err
	}
	if err := c.chooseLetters(ctx, p, form); err != nil {
		return err
	}
	p.In = t.Name
	switch {
	case len(p.Which.IDs) == 1:
		p.About = fmt.Sprintf("letters of message %q", p.Which.IDs[0])
	case len(p.Which.IDs) > 0:
		p.About = "letters of " + plural(len(p.Which.IDs), "message")
	case p.Which.Pattern != "":
		p.About = fmt.Sprintf("letters whose reason is %q", p.Which.Pattern)
	case p.Which.Reason != "":
		p.About = fmt.Sprintf("letters whose reason contains %q", p.Which.Reason)
	default:
		p.About = "all letters"
	}
	p.Foresee, p.Bound, err = t.Source.Predict(ctx, p.Which)
	return err
}

// chooseLetters says which letters are meant: those of the failures that a page shows, of the records of another plan
// or task, of an ID, or with a reason.
func (c *Console) chooseLetters(ctx context.Context, p *plan, form url.Values) (err error) {
	var of []dedupstore.Record
	f := &p.Which
	switch {
	case form.Has("plan") || form.Has("task"):
		other := c.plan(form.Get("plan"), p.session)
		if t := c.task(form.Get("task")); t != nil {
			other = t.plan
		}
		switch {
		case other == nil:
			return refuse(http.StatusNotFound, errNoPlan)
		case other.Action == Redrive:
			*f = other.Which
			return nil
		}
		of = other.Records
	case form.Has("id"):
		f.IDs = form["id"]
		if slices.Contains(f.IDs, "") {
			return refuse(http.StatusBadRequest, errNobody)
		}
		return nil
	case form.Has("key") || form.Has("letters") && !onlyPattern(form):
		if of, p.More, err = c.chooseRecords(ctx, p, form); err != nil {
			return err
		}
	default:
		f.Reason, f.Pattern = form.Get("reason"), form.Get("pattern")
		if f.Pattern == operate.OtherReasons {
			return refuse(http.StatusBadRequest, errManyReasons)
		}
		return nil
	}
	for i := range of {
		f.IDs = append(f.IDs, of[i].Key.ID)
	}
	slices.Sort(f.IDs)
	if f.IDs = slices.Compact(f.IDs); len(f.IDs) == 0 {
		return refuse(http.StatusBadRequest, errNobody)
	}
	return nil
}

// onlyPattern reports whether a list of failures is filtered by their pattern alone, or not at all.
func onlyPattern(form url.Values) bool {
	for name, values := range form {
		known := slices.Contains([]string{"in", "do", "token", "letters", "pattern"}, name) ||
			name == "state" && values[0] == openFailures
		if !known && values[0] != "" || values[0] == operate.OtherReasons {
			return false
		}
	}
	return true
}

func (c *Console) planRows(ctx context.Context, p *plan, form url.Values) error {
	o, err := c.box(p.In)
	if err != nil {
		return err
	}
	p.In = o.Name
	of := outbox.Dead
	if p.Action == Replay {
		of = outbox.Published
		if _, ok := o.Inspector.(outbox.Replayer); !ok {
			return refuse(http.StatusBadRequest, errReplay)
		}
	}
	ids := map[string]bool{}
	for _, id := range form["row"] {
		ids[id] = true
	}
	f := outbox.Filter{States: []outbox.State{of}, Topic: form.Get("topic"), ID: form.Get("id")}
	if len(ids) == 0 && form.Get("all") == "" {
		return refuse(http.StatusBadRequest, errNobody)
	}
	all, more, err := rowsOf(ctx, o.Inspector, f, mostPlanned, planTimeout, func(r *outbox.RowInfo) bool {
		return len(ids) == 0 || ids[r.ID]
	})
	if p.Action == Replay {
		p.Topic = f.Topic
	}
	if err == nil && (more || f.Topic != "") && p.Topic == "" {
		// Outboxes change rows by message ID, in all topics: show what else that is.
		clear(ids)
		for i := range all {
			ids[all[i].ID] = true
		}
		f.Topic = ""
		var cut bool
		all, cut, err = rowsOf(ctx, o.Inspector, f, math.MaxInt, 3*planTimeout, func(r *outbox.RowInfo) bool {
			return ids[r.ID]
		})
		if cut {
			return refuse(http.StatusBadRequest, errManyRows)
		}
	}
	if err != nil {
		return err
	}
	p.Rows, p.More = all, more
	counts := map[string]int64{}
	for i := range all {
		counts[all[i].Topic]++
	}
	for topic, n := range counts {
		p.Counts = append(p.Counts, amount{Name: topic, About: string(of), Tone: tone(of), N: n})
	}
	slices.SortFunc(p.Counts, biggest)
	return nil
}

// rowsOf returns rows of an outbox, at most so many, and whether there may be more.
func rowsOf(
	ctx context.Context, box outbox.Inspector, f outbox.Filter, most int, long time.Duration,
	wanted func(*outbox.RowInfo) bool,
) (rows []outbox.RowInfo, more bool, err error) {
	end := time.Now().Add(long)
	for after := ""; ; {
		page, err := box.List(ctx, f, after)
		if err != nil {
			return nil, false, err
		}
		for i := range page.Rows {
			if !wanted(&page.Rows[i]) {
				continue
			}
			if len(rows) == most {
				return rows, true, nil
			}
			rows = append(rows, page.Rows[i])
		}
		if after = page.Next; after == "" {
			return rows, false, nil
		}
		if time.Now().After(end) {
			return rows, true, nil
		}
	}
}

func (c *Console) showPlan(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p := c.plan(r.FormValue("id"), v.session)
	if p == nil {
		return refuse(http.StatusNotFound, errNoPlan)
	}
	if _, err := c.allowed(r, p.Action); err != nil {
		return err
	}
	return c.render(w, v, "plan", &page{
		Title: plural(p.N(), p.Things()) + " to " + string(p.Action), At: planScreen(p.Action),
		Body: struct {
			*plan
			ID      string
			Running bool
			Rate    int
			Shown   []dedupstore.Record
			RowList []outbox.RowInfo
			Topics  []string
		}{p, p.id, c.running.Load(), c.config.Rate, p.Records[:min(pageSize, len(p.Records))],
			p.Rows[:min(pageSize, len(p.Rows))], c.topicsOf(p.Records)},
	})
}

// planScreen is where an action belongs to.
func planScreen(a Action) string {
	switch a {
	case Requeue, Discard, Replay:
		return "outbox"
	default:
		return "failures"
	}
}
