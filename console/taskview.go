package console

import (
	"context"
	"net/http"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
)

const mostItems = 200 // that a page shows

// A taskView is how a task stands.
type taskView struct {
	taskNote
	Plan     *plan
	Redriven *operate.Redriven
	Items    []taskItem
	More     int
}

// A taskItem is a record of a task: what became of it, and how it stands now.
type taskItem struct {
	Record dedupstore.Record
	Result string
}

// State is how the task stands, in a word.
func (t *taskView) State() string {
	switch {
	case t.Began.IsZero() && t.Ended.IsZero():
		return "waiting"
	case t.Ended.IsZero():
		return "running"
	case t.Problem != "":
		return "stopped"
	default:
		return "done"
	}
}

// Done is how many have ended.
func (t *taskView) Done() int { return t.Changed + t.Refused }

func (t *task) view() *taskView {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &taskView{taskNote: t.taskNote, Plan: t.plan, Redriven: t.redriven}
	for i, r := range t.plan.Records[:min(mostItems, len(t.plan.Records))] {
		item := taskItem{Record: r, Result: "waiting"}
		if i < len(t.results) {
			item.Result = t.results[i]
		} else if !t.Ended.IsZero() {
			item.Result = "not done"
		}
		v.Items = append(v.Items, item)
	}
	v.More = len(t.plan.Records) - len(v.Items)
	return v
}

// viewTask also looks how the records stand now.
func (c *Console) viewTask(ctx context.Context, t *task) *taskView {
	v := t.view()
	s, err := c.store(t.plan.In)
	if err != nil || len(v.Items) == 0 {
		return v
	}
	var keys []dedupstore.Key
	for _, item := range v.Items {
		keys = append(keys, item.Record.Key)
	}
	records, err := s.Inspector.Look(ctx, keys)
	if err == nil { // else they are shown as they were
		for i := range records {
			v.Items[i].Record = records[i]
		}
	}
	return v
}

func (c *Console) showTask(w http.ResponseWriter, r *http.Request, v *visitor) error {
	ctx, cancel := within(r)
	defer cancel()
	id := r.FormValue("id")
	snap := c.now()
	body, err := c.livePart(snap, "task", r.URL.Query())
	if err != nil {
		return err
	}
	body.Task = c.viewTask(ctx, body.task)
	return c.render(w, v, "task", &page{
		Title: title(string(body.Task.Plan.Action)) + " " + plural(body.Task.Total, body.Task.Plan.Things),
		At:    body.Task.Plan.screen(), Live: string(link("live", "screen", "task", "id", id)), Snap: snap,
		Body: struct {
			*livePart
			Topics []string
		}{body, c.topicsOf(body.task.plan.Records)},
	})
}
