package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/explain"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
)

const (
	mostQueued = 16
	mostTasks  = 50  // that are remembered
	mostLogged = 200 // changes that a page shows
	mostAtOnce = 8   // that are done side by side
)

var (
	errNoTask  = errors.New("this action is not remembered any more: the audit log has it")
	errBusy    = errors.New("too many actions wait: try again when some have ended")
	errOutcome = errors.New("say what happened: succeeded or failed")
	errNote    = errors.New("write a note: it says why the failure is put aside")
	errHalted  = errors.New("by hand")
	errStopped = errors.New("the console was stopped")
)

// cutOff is what ended the tasks of an earlier process.
const cutOff = "the console ended: it had come so far at least, and the audit log has each change"

// A task is an action that was asked for. Some are done side by side.
type task struct {
	plan   *plan
	change dedupstore.Change // of records

	mu sync.Mutex
	taskNote
	halt     context.CancelFunc // nil: it has not begun
	halted   bool
	results  []string // by record: "changed", or why not
	redriven *operate.Redriven
}

// noteEvery is how often it is noted how far a task is.
const noteEvery = 2 * time.Second

// tell notes how far a task is, if that was long ago or it has ended. Whoever calls it holds the lock.
func (c *Console) tell(t *task) {
	if t.Ended.IsZero() && time.Since(t.Time) < noteEvery {
		return
	}
	t.Time = time.Now()
	note := t.taskNote
	note.Form = nil
	if err := c.config.Notes.noteTask(&note); err != nil {
		c.config.Logger.Error("console: action not noted", "error", err)
	}
}

// tasksOf are the tasks of earlier processes. Those that had not ended can be gone on with.
func tasksOf(notes *Notes) (all []*task) {
	for _, n := range notes.tasks {
		t := &task{taskNote: *n, plan: &plan{
			Action: n.Action, In: n.In, About: n.About, Things: n.Things, N: n.Total, form: n.Form,
		}}
		if t.Ended.IsZero() {
			t.Ended, t.Problem = n.Time, cutOff
		}
		all = append(all, t)
	}
	return all
}

// act queues what a plan says.
func (c *Console) act(w http.ResponseWriter, r *http.Request, v *visitor) error {
	p := c.plan(r.PostFormValue("id"), v.session)
	if p == nil {
		return refuse(http.StatusNotFound, errNoPlan)
	}
	who, err := c.allowed(r, p.Action)
	if err != nil {
		return err
	}
	t := &task{plan: p, taskNote: taskNote{
		ID: rand.Text(), Form: p.form, Action: p.Action, In: p.In, About: p.About, Things: p.Things, Total: p.N,
		Who: who, Why: strings.TrimSpace(r.PostFormValue("why")), Asked: time.Now(), Time: time.Now(),
	}}
	switch p.Action {
	case Forget:
		t.change = dedupstore.Forget{}
	case Rerun:
		t.change = dedupstore.Rerun{}
	case Complete:
		o := dedupstore.Outcome{Kind: dedupstore.Kind(r.PostFormValue("outcome"))}
		switch o.Kind {
		case dedupstore.Failed:
			o.Reason = cmp.Or(r.PostFormValue("because"), explain.Decided)
		case dedupstore.Succeeded:
			if result := r.PostFormValue("result"); result != "" {
				o.Result = []byte(result)
			}
		default:
			return refuse(http.StatusBadRequest, errOutcome)
		}
		t.change = dedupstore.Complete{Outcome: o}
	case Archive:
		if t.Why == "" {
			return refuse(http.StatusBadRequest, errNote)
		}
	}
	if !c.running.Load() {
		return refuse(http.StatusServiceUnavailable, errNotRunning)
	}
	if !c.takePlan(p) {
		return refuse(http.StatusNotFound, errNoPlan)
	}
	if err := c.config.Notes.noteTask(&t.taskNote); err != nil {
		return err
	}
	select {
	case c.queue <- t:
	default:
		c.end(t, errBusy)
		return refuse(http.StatusServiceUnavailable, errBusy)
	}
	c.mu.Lock()
	c.tasks = remember(c.tasks, t, (*task).over)
	c.mu.Unlock()
	seeOther(w, string(link("task", "id", t.ID)))
	return nil
}

// remember adds an action to the last ones, and forgets the first that has ended if there are too many.
func remember[T any](all []T, last T, over func(T) bool) []T {
	if all = append(all, last); len(all) > mostTasks {
		first := max(0, slices.IndexFunc(all, over))
		all = slices.Delete(all, first, first+1)
	}
	return all
}

func (t *task) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.Ended.IsZero()
}

func (c *Console) task(id string) *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := slices.IndexFunc(c.tasks, func(t *task) bool { return t.ID == id }); at >= 0 {
		return c.tasks[at]
	}
	return nil
}

// recent are the tasks, the last one first.
func (c *Console) recent() (all []*taskView) {
	c.mu.Lock()
	tasks := slices.Clone(c.tasks)
	c.mu.Unlock()
	slices.Reverse(tasks)
	for _, t := range tasks {
		all = append(all, t.view())
	}
	return all
}

// work does tasks until the context ends. Those that still wait then are given up.
func (c *Console) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for {
				select {
				case t := <-c.queue:
					c.end(t, errStopped)
				default:
					return
				}
			}
		case t := <-c.queue:
			ctx, halt := context.WithCancel(ctx)
			if t.begin(halt) {
				c.end(t, c.do(ctx, t))
			} else {
				c.end(t, errHalted)
			}
			halt()
			c.letters.forget()
			for _, s := range c.config.Stores { // what the page before shows has changed
				if s.Name == t.plan.In && t.plan.Things == "record" {
					c.hurry(s.Name)
				}
			}
		}
	}
}

// begin reports whether a task is still to be done.
func (t *task) begin(halt context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Began, t.halt = time.Now(), halt
	return !t.halted
}

func (c *Console) end(t *task, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil && t.halted:
		err = errHalted
	case errors.Is(err, context.Canceled):
		err = errStopped
	}
	t.Ended, t.Problem = time.Now(), strings.TrimPrefix(problemOf(err), "stopped: ")
	c.tell(t)
}

// stop ends a task before it has done all. Who may do it may stop it.
func (c *Console) stop(w http.ResponseWriter, r *http.Request, v *visitor) error {
	t := c.task(r.PostFormValue("id"))
	if t == nil {
		return refuse(http.StatusNotFound, errNoTask)
	}
	who, err := c.allowed(r, t.plan.Action)
	if err != nil {
		return err
	}
	t.mu.Lock()
	running := t.Ended.IsZero() && !t.halted
	t.halted = true
	if t.halt != nil {
		t.halt()
	}
	t.mu.Unlock()
	if running {
		c.config.Logger.InfoContext(r.Context(), "console: action stopped", "who", who, "action", string(t.plan.Action),
			"in", t.plan.In)
	}
	seeOther(w, string(link("task", "id", t.ID)))
	return nil
}

func (c *Console) do(ctx context.Context, t *task) error {
	switch t.plan.Things {
	case "letter":
		return c.changeLetters(ctx, t)
	case "row":
		return c.changeRows(ctx, t)
	default:
		return c.change(ctx, t)
	}
}

// audit tells what became of something.
func (c *Console) audit(ctx context.Context, t *task, e Entry, err error) {
	e.Time, e.Who, e.Action, e.Where, e.Why = time.Now(), t.Who, t.plan.Action, t.plan.In, t.Why
	if err != nil {
		e.Error = err.Error()
	}
	ctx = context.WithoutCancel(ctx)
	c.config.Logger.InfoContext(ctx, "console: action", "who", e.Who, "action", string(e.Action), "in", e.Where,
		"what", e.What, "fence", e.Fence, "outcome", e.Outcome, "why", e.Why, "result", e.Result, "error", e.Error)
	c.config.Audit(ctx, e)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made[max(0, len(c.made)+1-mostLogged):], e)
}

func (c *Console) result(t *task, changed int, refused int, results ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Changed += changed
	t.Refused += refused
	t.results = append(t.results, results...)
	c.tell(t)
}

// change changes one record after the other, as fast as is allowed.
func (c *Console) change(ctx context.Context, t *task) error {
	s, err := c.store(t.plan.In)
	if err != nil {
		return err
	}
	items := make([]operate.Item, len(t.plan.Records))
	for i := range t.plan.Records {
		items[i] = operate.Item{Record: t.plan.Records[i], Change: t.change}
	}
	do := func(ctx context.Context, item *operate.Item) error {
		if t.change != nil {
			return s.Inspector.Change(ctx, item.Record, t.change)
		}
		return c.config.Notes.note(t.plan.Action == Restore, Note{
			Store: s.Name, Key: item.Record.Key.String(), Fence: item.Record.Fence, Who: t.Who, Why: t.Why,
			Time: time.Now(), Expires: item.Record.Expires,
		})
	}
	return operate.Change(ctx, items, c.config.Rate, lookTimeout, do, func(item *operate.Item, err error) {
		e := Entry{
			What: item.Record.Key.String(), Fence: item.Record.Fence, Outcome: operate.Decided(item.Change),
			Result: "changed",
		}
		switch {
		case err == nil:
			c.result(t, 1, 0, "changed")
		case operate.Refused(err):
			e.Result = "refused"
			c.result(t, 0, 1, err.Error())
		default:
			e.Result = "failed"
		}
		c.audit(ctx, t, e, err)
	})
}

// changeRows requeues, discards or replays rows.
func (c *Console) changeRows(ctx context.Context, t *task) error {
	o, err := c.box(t.plan.In)
	if err != nil {
		return err
	}
	change := operate.RowChange{
		Box: o.Inspector, Verb: t.plan.Action, Rows: t.plan.Rows, Rate: c.config.Rate,
		Tell: func(ids []string, changed int, err error) {
			e := Entry{What: quoted(ids), Result: fmt.Sprintf("changed %d", changed)}
			if err != nil {
				e.Result = "failed"
			}
			c.result(t, changed, 0)
			c.audit(ctx, t, e, err)
		},
	}
	change.Replay = outbox.ReplayRequest{Topic: t.plan.Topic, IDs: change.IDs()}
	if err = change.Do(ctx); err == nil { // the others are no longer what they were
		t.mu.Lock()
		defer t.mu.Unlock()
		t.Refused = max(0, len(t.plan.Rows)-t.Changed)
	}
	return err
}

// quoted are IDs in which nothing is taken for the end of one.
func quoted(ids []string) string {
	text, _ := json.Marshal(ids) // strings always can
	return string(text)
}

// changeLetters redrives or discards dead letters.
func (c *Console) changeLetters(ctx context.Context, t *task) error {
	see := func(now operate.Redriven) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.Changed, t.Refused = now.Sent, now.Refused
		if t.plan.Action == Redrive {
			t.redriven = &now
		}
		c.tell(t)
	}
	r := t.plan.letters
	r.Tell = func(result string, ids []string, err error, now operate.Redriven) {
		see(now)
		c.audit(ctx, t, Entry{What: quoted(ids), Result: result}, err)
	}
	done, err := r.Do(ctx, t.plan.Foreseen)
	see(done)
	result := "sent"
	if r.Discards {
		result = "discarded"
	}
	if err != nil || done.Sent == 0 { // else each batch was told
		c.audit(ctx, t, Entry{What: t.plan.About, Result: fmt.Sprintf("%s %d", result, done.Sent)}, err)
	}
	return err
}
