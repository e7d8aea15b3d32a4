package console

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
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
	Topic   string // of a replay; empty: all

	letters  *operate.Redrive // of dead letters
	Foreseen *operate.Prediction

	N      int        // how many things would change
	Things string     // what they are: record, row or letter
	form   url.Values // plans the same again

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
	case Discard:
		if p.letters != nil {
			return "Puts dead letters aside for good: no redrive sends them. JetStream removes them; in Kafka they " +
				"are marked, and stay until the topic's retention ends. Records are not changed."
		}
		return "Removes dead rows for good: their messages are lost. An attempt without an answer may have published " +
			"one all the same."
	case Requeue:
		return "Makes dead rows pending again: relays publish them at once. A message that is dead in several topics " +
			"is requeued in all of them."
	default:
		return "Publishes rows once more that were published. Consumers take the copies for duplicates as long as " +
			"their windows last."
	}
}

// sum counts what would change, and keeps what plans the same again: with the fences of records and the last time of
// rows, by which the rest of an action is told from what it has done, and from what has changed since.
func (p *plan) sum() {
	p.form = url.Values{"in": {p.In}}
	switch {
	case p.letters != nil:
		p.Things, p.N = "letter", p.Foreseen.N()
		choice, _ := json.Marshal(p.letters.Letters) // texts and times always can
		p.form = url.Values{"letters": {p.In}, "choice": {string(choice)}}
	case p.Action == Requeue, p.Action == Discard, p.Action == Replay:
		p.Things, p.N = "row", len(p.Rows)
		p.form["topic"] = []string{p.Topic}
		var last time.Time
		for i := range p.Rows {
			p.form.Add("row", p.Rows[i].ID)
			if ended := p.Rows[i].Ended; ended.After(last) {
				last = ended
			}
		}
		p.form.Set("ended", last.Format(time.RFC3339Nano))
	default:
		p.Things, p.N = "record", len(p.Records)
		for i := range p.Records {
			p.form.Add("key", p.Records[i].Key.String())
			p.form.Add("fence", strconv.FormatUint(p.Records[i].Fence, 10))
		}
	}
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
	form, err := c.formOf(r.PostForm, p)
	if err != nil {
		return err
	}
	switch {
	case p.Action == Redrive, p.Action == Discard && form.Has("letters"):
		err = c.planLetters(ctx, p, form)
	case p.Action == Requeue, p.Action == Discard, p.Action == Replay:
		err = c.planRows(ctx, p, form)
	default:
		err = c.planRecords(ctx, p, form)
	}
	if err == nil && p.letters != nil {
		err = c.read(r.Context(), p)
	}
	if err != nil {
		return err
	}
	p.sum()
	c.keepPlan(p)
	seeOther(w, string(link("plan", "id", p.id)))
	return nil
}

// formOf is what a plan is made of: a form, or what another plan or task was made of, by which the form means the rest
// of that, or its dead letters.
func (c *Console) formOf(form url.Values, p *plan) (url.Values, error) {
	if !form.Has("plan") && !form.Has("task") {
		return form, nil
	}
	other := c.plan(form.Get("plan"), p.session)
	if t := c.task(form.Get("task")); t != nil {
		other = t.plan
	}
	if other == nil {
		return nil, refuse(http.StatusNotFound, errNoPlan)
	}
	of := maps.Clone(other.form)
	if of == nil { // the notes have lost it
		of = url.Values{}
	}
	if letters := form["letters"]; letters != nil {
		of["letters"] = letters
	}
	p.In = of.Get("in")
	return of, nil
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

func (c *Console) showPlan(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p := c.plan(r.FormValue("id"), v.session)
	if p == nil {
		return refuse(http.StatusNotFound, errNoPlan)
	}
	if _, err := c.allowed(r, p.Action); err != nil {
		return err
	}
	return c.render(w, v, "plan", &page{
		Title: plural(p.N, p.Things) + " to " + string(p.Action), At: p.screen(),
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

// Redrives reports whether messages of dead letters would run again.
func (p *plan) Redrives() bool { return p.Action == Redrive }

// screen is where the action belongs to.
func (p *plan) screen() string {
	if p.Things == "row" {
		return "outbox"
	}
	return "failures"
}
