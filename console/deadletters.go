package console

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/producer"
)

// A DeadLetterTopic is a topic of dead letters. Give it the topic's own name: records name the topic of their letters.
type DeadLetterTopic struct {
	Name   string
	Source deadletters.Source // natsjs.NewDeadLetters and franz.NewDeadLetters make one

	// Store is the name of the store that has the records of the messages. Default: the first one.
	Store string
}

// topicsOf are the names of the topics that have the dead letters of some failures: those that their records name, else
// all that are configured.
func (c *Console) topicsOf(records []dedupstore.Record) (named []string) {
	var all []string
	for _, t := range c.config.DeadLetters {
		all = append(all, t.Name)
		if slices.ContainsFunc(records, func(r dedupstore.Record) bool {
			return slices.ContainsFunc(r.Outcome.Produced,
				func(p dedupstore.Produced) bool { return p.Topic == t.Name })
		}) {
			named = append(named, t.Name)
		}
	}
	if len(named) == 0 {
		return all
	}
	return named
}

// A letterView is a dead letter as a page shows it.
type letterView struct {
	*deadletters.Letter
	Mark string // what has become of it; empty: it waits
}

func viewOf(l *deadletters.Letter, fate operate.Fate) letterView {
	v := letterView{Letter: l}
	if l.Done {
		v.Mark = "redriven"
	}
	switch fate {
	case operate.FateSucceeded:
		v.Mark = "succeeded since"
	case operate.FateRunning:
		v.Mark = "running"
	case operate.FateDue:
		v.Mark = "to run again"
	case operate.FateFailed:
		v.Mark = "failed again"
	case operate.FateDecided:
		v.Mark = "decided"
	}
	return v
}

// About names the letter: by its message, if it says which that is.
func (v letterView) About() string { return cmp.Or(v.Original(), v.ID, v.Position) }

// OrderKey is that of the message.
func (v letterView) OrderKey() string { return cmp.Or(v.Get(producer.HeaderKey), v.Key) }

// A letterPage is a part of a topic's list.
type letterPage struct {
	Letters []letterView
	Looked  int
	Total   int
	Next    string // where the next page begins
	Full    bool   // the page is; else the time was over
	Problem string // why it is not known what became of them
}

// letterQuery are the parameters of a list of letters.
type letterQuery struct{ Topic, Reason, ID, Key, after string }

func readLetterQuery(r *http.Request) letterQuery {
	return letterQuery{
		Topic: r.FormValue("letters"), Reason: r.FormValue("reason"), ID: strings.TrimSpace(r.FormValue("letter")),
		Key: r.FormValue("key"), after: r.FormValue("letters-after"),
	}
}

// Filtered reports whether anything is left out.
func (q letterQuery) Filtered() bool { return q.Reason+q.ID+q.Key != "" }

func (q letterQuery) choice() operate.Letters {
	f := operate.Letters{Reason: q.Reason, Key: q.Key}
	if q.ID != "" {
		f.IDs = []string{q.ID}
	}
	return f
}

// letterPages are what somebody has seen a moment ago: a crowd reads the topic once.
type letterPages struct {
	mu  sync.Mutex
	all map[letterQuery]*seenLetters
}

type seenLetters struct {
	read func() (*letterPage, error) // once
	at   time.Time
}

// lettersFor is how long others are shown the same page.
const lettersFor = 5 * time.Second

// of finds what reads a page, for all who ask for it, and forgets those that are too old.
func (p *letterPages) of(q letterQuery, read func() (*letterPage, error)) func() (*letterPage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.all, func(_ letterQuery, s *seenLetters) bool { return time.Since(s.at) > lettersFor })
	if p.all[q] == nil {
		p.all[q] = &seenLetters{sync.OnceValues(read), time.Now()}
	}
	return p.all[q].read
}

// forget makes all pages be read anew.
func (p *letterPages) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = map[letterQuery]*seenLetters{}
}

// listLetters lists the letters of a topic, the newest first. Those who ask for the same wait for one read.
func (c *Console) listLetters(ctx context.Context, q letterQuery) (*letterPage, error) {
	t, err := c.topic(q.Topic)
	if err != nil {
		return nil, err
	}
	return c.letters.of(q, func() (*letterPage, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // others wait for it, too
		defer cancel()
		return c.readLetters(ctx, t, q)
	})()
}

func (c *Console) readLetters(ctx context.Context, t DeadLetterTopic, q letterQuery) (*letterPage, error) {
	choice := q.choice()
	found, err := t.Source.Page(ctx, q.after, pageSize, choice.Matches)
	if err != nil {
		return nil, err
	}
	page := &letterPage{Looked: found.Looked, Total: found.Total, Full: len(found.Letters) == pageSize}
	cases := make([]operate.Case, len(found.Letters))
	if store, err := c.store(t.Store); err == nil {
		var failed error
		if cases, failed = operate.Cases(ctx, store.Inspector, found.Letters); failed != nil {
			page.Problem = failed.Error()
		}
	}
	for i := range found.Letters {
		page.Letters = append(page.Letters, viewOf(&found.Letters[i], cases[i].Fate))
	}
	if found.Next != "" {
		page.Next = string(link("failures", "letters", q.Topic, "reason", q.Reason, "letter", q.ID, "key", q.Key,
			"letters-after", found.Next)) + "#letters"
	}
	return page, nil
}

func (c *Console) letter(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	t, err := c.topic(r.FormValue("in"))
	if err != nil {
		return err
	}
	at := r.FormValue("at")
	one, err := t.Source.Show(ctx, at)
	if err != nil && !errors.Is(err, deadletters.ErrGone) {
		return err
	}
	body := struct {
		In     string
		Letter *letterView // nil: it is gone
	}{In: t.Name}
	title := "at " + at
	if err == nil {
		if v.may[Payloads] {
			c.sawPayload(r, v, t.Name, one.ID)
		}
		shown := viewOf(&one, "")
		if s, err := c.store(t.Store); err == nil {
			if cases, err := operate.Cases(ctx, s.Inspector, []deadletters.Letter{one}); err == nil {
				shown = viewOf(&one, cases[0].Fate)
			}
		}
		body.Letter, title = &shown, shown.About()
	}
	return c.render(w, v, "letter", &page{Title: "Dead letter " + title, At: "failures", Body: body})
}
