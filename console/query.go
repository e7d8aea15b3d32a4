package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

const (
	pageSize = 50
	budget   = 200 * time.Millisecond // how long a page looks for records
)

var (
	errNoStore  = errors.New("no store is named so: see Config.Stores")
	errNoOutbox = errors.New("no outbox is named so: see Config.Outboxes")
	errNoTopic  = errors.New("no topic of dead letters is named so: see Config.DeadLetters")
)

// sourceOf finds the source with a name; without one it is the first.
func sourceOf[T any](all []T, name string, nameOf func(T) string, missing error) (source T, err error) {
	at := slices.IndexFunc(all, func(one T) bool { return name == "" || nameOf(one) == name })
	if at < 0 {
		return source, refuse(http.StatusNotFound, missing)
	}
	return all[at], nil
}

func (c *Console) store(name string) (Store, error) {
	return sourceOf(c.config.Stores, name, func(s Store) string { return s.Name }, errNoStore)
}

func (c *Console) box(name string) (Outbox, error) {
	return sourceOf(c.config.Outboxes, name, func(o Outbox) string { return o.Name }, errNoOutbox)
}

func (c *Console) topic(name string) (DeadLetterTopic, error) {
	return sourceOf(c.config.DeadLetters, name, func(d DeadLetterTopic) string { return d.Name }, errNoTopic)
}

// A query says which records a page shows, and from where on.
type query struct {
	In      string // the store
	State   string
	Pattern string // of reasons
	Text    struct{ Since, Before string }
	dedupstore.Filter
	grouped map[string]bool // the patterns that have a group, if others are meant
	after   string
	skip    int // records of the store's page that were shown before
	looked  int
	shown   int // on the pages before
}

// openFailures is the state of failures that are not archived, on their own screen.
const openFailures = "failing"

var states = []string{"running", "retryable", "publishing", "succeeded", "failed", "unknown"}

// ages are what Messages offers for Since and Before.
var ages = []string{"5m", "1h", "24h", "168h"}

func readQuery(q url.Values, now time.Time) (*query, error) {
	f := &query{In: q.Get("in"), State: q.Get("state"), Pattern: q.Get("pattern"), after: q.Get("after")}
	f.Tenant, f.Group, f.Handler = q.Get("tenant"), q.Get("group"), q.Get("handler")
	f.ID, f.Reason = strings.TrimSpace(q.Get("id")), q.Get("reason")
	f.Text.Since, f.Text.Before = q.Get("since"), q.Get("before")
	f.skip, _ = strconv.Atoi(q.Get("skip"))
	f.looked, _ = strconv.Atoi(q.Get("looked"))
	f.shown, _ = strconv.Atoi(q.Get("shown"))
	switch f.State {
	case "":
	case "running", "retryable", "publishing":
		f.States = []dedupstore.State{dedupstore.State(f.State)}
	case "succeeded", "failed", "unknown":
		f.Kinds = []dedupstore.Kind{dedupstore.Kind(f.State)}
	case openFailures:
		f.Kinds = failed
	default:
		return nil, refuse(http.StatusBadRequest, fmt.Errorf("console: state is %q, want one of %s", f.State,
			strings.Join(states, ", ")))
	}
	if f.Reason == "" {
		f.Reason = operate.Piece(f.Pattern)
	}
	var err error
	if f.Since, err = operate.When(f.Text.Since, now); err == nil {
		f.Before, err = operate.When(f.Text.Before, now)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, fmt.Errorf("console: since or before %w", err))
	}
	return f, nil
}

// pairs are the parameters of a link to the same query, without a place in it.
func (q *query) pairs() []any {
	reason := q.Reason
	if q.Pattern != "" && reason == operate.Piece(q.Pattern) {
		reason = ""
	}
	return []any{
		"in", q.In, "state", q.State, "tenant", q.Tenant, "group", q.Group, "handler", q.Handler, "id", q.ID,
		"reason", reason, "pattern", q.Pattern, "since", q.Text.Since, "before", q.Text.Before,
	}
}

// Pairs are for templates that carry the query along in a form.
func (q *query) Pairs() (fields [][2]string) {
	all := q.pairs()
	for i := 0; i+1 < len(all); i += 2 {
		if value := all[i+1].(string); value != "" {
			fields = append(fields, [2]string{all[i].(string), value})
		}
	}
	return fields
}

// Filtered reports whether the query leaves anything out.
func (q *query) Filtered() bool { return len(q.Pairs()) > min(1, len(q.In)) }

func (q *query) matches(r *dedupstore.Record) bool {
	switch pattern := operate.Pattern(r.Outcome.Reason); q.Pattern {
	case "":
		return true
	case operate.OtherReasons:
		return len(q.grouped) >= operate.MostGroups && !q.grouped[pattern]
	default:
		return pattern == q.Pattern
	}
}

// A found is what a page shows of a list.
type found struct {
	Records []dedupstore.Record
	Next    string // the link to go on; empty: that is all
	Looked  int
	Total   int
	From    int    // the number of the first record, over all pages
	To      int    // that of the last one
	Of      int    // how many there are, roughly; 0: not known
	Unread  string // which records could not be read
	Full    bool   // the page is full, so Next is the next page; else the time was over
}

// find looks for records until the page is full, the time is over, or the store has no more. An ID is first looked up
// in the scopes that the loop knows, which takes one round trip however large the store is.
func (c *Console) find(ctx context.Context, s Store, q *query, most int, long time.Duration) (*found, error) {
	end := time.Now().Add(long)
	f := &found{Looked: q.looked}
	have := map[dedupstore.Key]bool{}
	if q.Pattern == operate.OtherReasons {
		q.grouped = map[string]bool{}
		for _, g := range c.now().store(s.Name).Failures.Groups {
			q.grouped[g.Pattern] = true
		}
	}
	if q.ID != "" && q.after == "" && q.skip == 0 {
		direct, err := c.lookUp(ctx, s, q)
		if err != nil {
			return nil, err
		}
		for i := range direct {
			have[direct[i].Key] = true
		}
		f.Records = direct
		if len(direct) > 0 {
			end = time.Now() // where else it may be is looked for on request
		}
	}
	after, skip := q.after, max(q.skip, 0)
	for {
		page, err := s.Inspector.List(ctx, q.Filter, after)
		if _, ok := dedupstore.Unreadable(err); !ok {
			return nil, err
		}
		f.Unread = cmp.Or(f.Unread, problemOf(err))
		f.Total = max(f.Total, page.Total)
		all := slices.DeleteFunc(page.Records, func(r dedupstore.Record) bool {
			return have[r.Key] || !q.matches(&r) || q.State == openFailures && c.config.Notes.of(s.Name, &r) != nil
		})
		slices.SortFunc(all, operate.LastFirst)
		skip = min(skip, len(all))
		taken := all[skip:min(len(all), skip+max(0, most-len(f.Records)))]
		f.Records = append(f.Records, taken...)
		for i := range taken {
			have[taken[i].Key] = true
		}
		if skip += len(taken); skip < len(all) {
			f.Full = true
			f.goOn(q, after, skip)
			break
		}
		f.Looked += page.Looked
		if after, skip = page.Next, 0; after == "" {
			break
		}
		if f.Full = len(f.Records) >= most; f.Full || time.Now().After(end) {
			f.goOn(q, after, 0)
			break
		}
	}
	f.Total = max(f.Total, f.Looked)
	f.From, f.To = q.shown+1, q.shown+len(f.Records)
	if f.Next != "" {
		f.Next += fmt.Sprintf("&shown=%d", f.To)
	}
	if !q.Filtered() {
		f.Of = f.Total
	}
	return f, nil
}

func (f *found) goOn(q *query, after string, skip int) {
	f.Next = string(link("", append(q.pairs(), "after", after, "skip", skip, "looked", f.Looked)...))[len("./"):]
}

// lookUp looks for an ID in the scopes that the store or the loop knows.
func (c *Console) lookUp(ctx context.Context, s Store, q *query) ([]dedupstore.Record, error) {
	var scopes []dedupstore.Scope
	for _, scope := range c.now().store(s.Name).Counts.Scopes {
		scopes = append(scopes, dedupstore.Scope{Tenant: scope.Tenant, Group: scope.Group, Handler: scope.Handler})
	}
	found, _, err := operate.LookUp(ctx, s.Inspector, q.Filter, scopes...)
	return slices.DeleteFunc(found, func(r dedupstore.Record) bool { return !q.matches(&r) }), err
}
