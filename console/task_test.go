package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// stuck is a publisher that answers when somebody stops it.
type stuck struct{}

func (stuck) Publish(ctx context.Context, _ ...producer.Message) error {
	<-ctx.Done()
	return ctx.Err()
}

// oneRerun is a store of which only the first rerun has an answer.
type oneRerun struct {
	*pagedStore
	reruns *atomic.Int32
}

func (s oneRerun) Change(ctx context.Context, seen dedupstore.Record, c dedupstore.Change) error {
	if _, is := c.(dedupstore.Rerun); is && s.reruns.Add(1) > 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.pagedStore.Change(ctx, seen, c)
}

// begins plans an action and confirms it, and returns the page of the task.
func (s *site) begins(do Action, form url.Values) (task string) {
	s.Helper()
	form.Set("do", string(do))
	form.Set("token", s.token())
	_, body, _ := s.post("plan", form)
	id := idField.FindStringSubmatch(body)
	if len(id) == 0 {
		s.Fatalf("no plan:\n%s", body)
	}
	_, _, at := s.post("act", url.Values{"id": {id[1]}, "token": {s.token()}, "why": {"a test"}})
	return strings.TrimPrefix(at, "/console/")
}

// An action holds up no other one, can be stopped, and then says what it did and how to go on.
func TestTask_CanBeStoppedAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = everything
		c.DeadLetters[0].Source.(*consumertest.Letters).To = stuck{}
	}).fill().runs()
	task := s.begins(Redrive, url.Values{"in": {"dead.billing"}, "reason": {"card"}})
	body := s.eventually(task, `data-announce>running<`)
	s.acts(Forget, url.Values{"in": {"records"}, "key": {key("good").String()}}, nil)
	if !strings.Contains(body, `id="halt"`) {
		t.Errorf("no way to stop it:\n%s", body)
	}
	id := url.Values{"id": {strings.TrimPrefix(task, "task?id=")}, "token": {s.token()}}
	if status, body, _ := s.post("stop", id); status != http.StatusOK {
		t.Fatalf("status %d\n%s", status, body)
	}
	body = s.eventually(task, `data-announce>stopped<`)
	for _, text := range []string{"Stopped: by hand", `id="go-on"`} {
		if !strings.Contains(body, text) {
			t.Errorf("no %q in\n%s", text, body)
		}
	}
	_, body, _ = s.post("plan", url.Values{
		"do": {"redrive"}, "in": {"dead.billing"}, "task": id["id"], "token": {s.token()},
	})
	if !strings.Contains(body, `whose reason contains &#34;card&#34;`) {
		t.Errorf("the rest is\n%s", body)
	}
}

// Who may not do something may not stop it.
func TestTask_StopNeedsTheRight(t *testing.T) {
	t.Parallel()
	may := true
	s := newSite(t, func(c *Config) {
		c.Authorize = func(_ *http.Request, a Action) (string, error) {
			if a == Redrive && !may {
				return "", errors.New("not you")
			}
			return "ada", nil
		}
		c.DeadLetters[0].Source.(*consumertest.Letters).To = stuck{}
	}).fill().runs()
	task := s.begins(Redrive, url.Values{"in": {"dead.billing"}})
	s.eventually(task, `data-announce>running<`)
	may = false
	id := url.Values{"id": {strings.TrimPrefix(task, "task?id=")}, "token": {s.token()}}
	if status, _, _ := s.post("stop", id); status != http.StatusForbidden {
		t.Errorf("status %d", status)
	}
	if body := s.eventually(task, "running"); strings.Contains(body, `id="halt"`) {
		t.Errorf("it is offered\n%s", body)
	}
}

// Archived failures are listed, and can be brought back.
func TestArchive_IsListedAndRestored(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	form := url.Values{"in": {"records"}, "key": {key("bad").String(), key("bad-2").String()}}
	s.acts(Archive, form, url.Values{"why": {"known"}})
	if body := s.eventually("failures?archived=1", "bad-2"); !strings.Contains(body, `value="restore"`) {
		t.Errorf("no way back:\n%s", body)
	}
	s.acts(Restore, url.Values{"in": {"records"}, "key": {key("bad").String()}}, nil)
	if _, body := s.get("failures?archived=1"); strings.Contains(body, messageLink(key("bad"))) {
		t.Errorf("it is still archived:\n%s", body)
	}
	s.eventually("failures?list=1", ">bad<")
}

// The audit log tells IDs apart, whatever is in them.
func TestAudit_IDsAreQuoted(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.box.mu.Lock()
	for _, id := range []string{"a b", "a", `b"`} {
		s.box.rows = append(s.box.rows, outbox.RowInfo{ID: id, Topic: "t", State: outbox.Dead, Ended: time.Now()})
	}
	s.box.mu.Unlock()
	s.acts(Requeue, url.Values{"in": {"shop"}, "all": {"1"}}, nil)
	if got := s.entries()[0].What; got != `["a","a b","b\""]` {
		t.Errorf("the audit log has %s", got)
	}
}

// A restored note stays so when the file is read again.
func TestNotes_RestoreIsKept(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/notes"
	n, err := OpenNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	note := Note{Store: "s", Key: key("x").String(), Fence: 7}
	if err := errors.Join(n.note(false, note), n.note(true, note), n.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err = OpenNotes(path); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if n.of("s", &dedupstore.Record{Key: key("x"), Fence: 7}) != nil {
		t.Error("it is archived again")
	}
}

// The log says who changed what, the last change first, and shows no markup of theirs.
func TestLog_SaysWhoChangedWhat(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	if _, body := s.get("log"); !strings.Contains(body, "Nobody has changed anything") {
		t.Error(body)
	}
	s.acts(Rerun, url.Values{"in": {"records"}, "key": {key("bad").String()}}, url.Values{"why": {"<i>mended</i>"}})
	s.acts(Forget, url.Values{"in": {"records"}, "key": {key("good").String()}}, nil)
	_, body := s.get("log")
	last, first := strings.Index(body, "<td>forget</td>"), strings.Index(body, "<td>rerun</td>")
	if last < 0 || first < last || !strings.Contains(body, "&lt;i&gt;mended") ||
		!strings.Contains(body, "<td>ada</td>") {
		t.Error(body)
	}
}

// After a restart, also by a kill, the console shows what was begun and how far it got, and plans the rest of it.
func TestTask_SurvivesARestart(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/notes"
	open := func(c *Config) {
		c.Authorize = everything
		var err error
		if c.Notes, err = OpenNotes(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Notes.Close() })
	}
	first := newSite(t, func(c *Config) {
		open(c)
		c.DeadLetters[0].Source.(*consumertest.Letters).To = stuck{}
		c.Stores[0].Inspector = oneRerun{c.Stores[0].Inspector.(*pagedStore), new(atomic.Int32)}
	}).fill().runs()
	first.acts(Forget, url.Values{"in": {"records"}, "key": {key("good").String()}}, nil)
	redrive := first.begins(Redrive, url.Values{"letters": {"dead.billing"}, "of": {"list"}, "reason": {"card"}})
	rerun := first.begins(Rerun, url.Values{"in": {"records"}, "key": {key("bad").String(), key("bad-2").String()}})
	first.eventually(redrive, `data-announce>running<`)
	first.eventually(rerun, `id="task-changed">1<`)

	second := newSite(t, open).runs() // what the first one has written is all that is left of it
	second.store, second.dead = first.store, first.dead
	for page, texts := range map[string][]string{
		redrive: {"Stopped: the console ended", "by ada", "a test", "Redrive the rest…"},
		rerun:   {"Stopped: the console ended", `<progress max="2"`, "Rerun the rest…"},
		"failures": {"Redrive 1 letter</a> <span class=\"badge t-wait\">stopped<",
			"Forget 1 record</a> <span class=\"badge t-good\">done<"},
	} {
		_, body := second.get(page)
		for _, text := range texts {
			if !strings.Contains(body, text) {
				t.Errorf("%s has no %q in\n%s", page, text, body)
			}
		}
	}
	second = newSite(t, func(c *Config) {
		open(c)
		c.Stores[0].Inspector = first.store
		c.DeadLetters[0].Source = first.dead
	}).runs()
	second.store = first.store
	rest := func(task, do string) string {
		_, body, _ := second.post("plan", url.Values{
			"do": {do}, "task": {strings.TrimPrefix(task, "task?id=")}, "token": {second.token()},
		})
		return body
	}
	if body := rest(redrive, "redrive"); !strings.Contains(body, `whose reason contains &#34;card&#34;`) {
		t.Errorf("the rest is\n%s", body)
	}
	if body := rest(rerun, "rerun"); !strings.Contains(body, "1 left alone: is retryable") {
		t.Errorf("the rest is\n%s", body)
	}
}

// The rest of an action is no thing that has changed since, such as one that was done, and came again.
func TestPlan_TheRestIsWhatItWas(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	rest := func(do Action, form url.Values, meanwhile func()) string {
		form.Set("do", string(do))
		form.Set("token", s.token())
		_, body, _ := s.post("plan", form)
		plan := idField.FindStringSubmatch(body)
		if len(plan) == 0 {
			t.Fatal(body)
		}
		meanwhile()
		_, body, _ = s.post("plan", url.Values{"do": {string(do)}, "plan": {plan[1]}, "token": {s.token()}})
		return body
	}
	of := url.Values{"in": {"records"}, "key": {key("bad").String(), key("bad-2").String()}}
	body := rest(Forget, of, func() {
		s.forgets(key("bad"))
		s.finishes(key("bad"), dedupstore.Outcome{Kind: dedupstore.Succeeded})
	})
	if !strings.Contains(body, "1 left alone: has changed since") || !strings.Contains(body, "Forget 1 record<") {
		t.Errorf("the rest is\n%s", body)
	}
	s.box.mu.Lock()
	again := s.box.rows[0]
	again.ID = "good-2"
	s.box.rows = append(s.box.rows, again)
	s.box.mu.Unlock()
	body = rest(Replay, url.Values{"in": {"shop"}, "row": {"good", "good-2"}}, func() {
		s.box.mu.Lock()
		defer s.box.mu.Unlock()
		s.box.rows[0].Ended = time.Now()
	})
	if !strings.Contains(body, "Replay 1 row<") {
		t.Errorf("the rest is\n%s", body)
	}
}

// The rest of a plan with steps may name more than a plan can have, and most of it may be done.
func TestPlan_WhatIsDoneHidesNothingThatIsLeft(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	form := url.Values{"in": {"records"}, "do": {"forget"}, "token": {s.token()}}
	const more, left = mostPlanned + 100, 5
	name := func(i int) dedupstore.Key { return key(fmt.Sprint("order-", i)) }
	for i := range more {
		form.Add("key", name(i).String())
	}
	for i := more - left; i < more; i++ {
		s.finishes(name(i), dedupstore.Outcome{Kind: dedupstore.Succeeded})
	}
	if _, body, _ := s.post("plan", form); !strings.Contains(body, fmt.Sprintf("Forget %d records<", left)) {
		t.Errorf("the plan is\n%s", body)
	}
	for i := range more - left {
		s.finishes(name(i), dedupstore.Outcome{Kind: dedupstore.Succeeded})
	}
	if _, body, _ := s.post("plan", form); !strings.Contains(body, "Forget 1,000 records<") ||
		!strings.Contains(body, "There is more") {
		t.Errorf("the plan is\n%s", body)
	}
}

// What runs can be stopped, however many actions came after it.
func TestTask_WhatRunsIsNotForgotten(t *testing.T) {
	t.Parallel()
	const runs = -1
	all := []int{runs}
	for i := range 2 * mostTasks {
		all = remember(all, i, func(n int) bool { return n != runs })
	}
	if len(all) != mostTasks || all[0] != runs || all[mostTasks-1] != 2*mostTasks-1 {
		t.Errorf("remembered are %v", all)
	}
}
