package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/operate"
	"github.com/oncemill/oncemill/outbox"
	"github.com/oncemill/oncemill/producer"
)

// forms are what asks for each action.
func forms() map[Action]url.Values {
	record := func(id string) url.Values {
		return url.Values{"in": {"records"}, "key": {key(id).String()}}
	}
	return map[Action]url.Values{
		Forget: record("good"), Rerun: record("bad"), Complete: record("doubtful"), Archive: record("bad-2"),
		Redrive: {"in": {"dead.billing"}}, Requeue: {"in": {"shop"}, "row": {"row-dead"}},
		Discard: {"in": {"shop"}, "row": {"row-dead"}}, Replay: {"in": {"shop"}, "row": {"good"}},
	}
}

// state is all that an action could change.
func (s *site) state() string {
	s.Helper()
	page, err := s.store.List(s.Context(), dedupstore.Filter{}, "")
	if err != nil {
		s.Fatal(err)
	}
	var all []string
	for _, r := range page.Records {
		all = append(all, fmt.Sprint(r.Key, r.State, r.Outcome.Kind, s.console.config.Notes.of("records", &r) != nil))
	}
	return strings.Join(append(all, s.box.states()...), "\n") + fmt.Sprint(len(s.dead.All()), s.reruns.Sent())
}

func TestActions_DoWhatThePlanSays(t *testing.T) {
	t.Parallel()
	for do, form := range forms() {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
			confirm := url.Values{"why": {"ticket <i>4711</i>"}}
			if do == Complete {
				confirm.Set("outcome", "succeeded")
			}
			before := s.state()
			body := s.acts(do, form, confirm)
			if after := s.state(); after == before {
				t.Errorf("nothing has changed:\n%s", after)
			}
			if !strings.Contains(body, "by ada") || !strings.Contains(body, "ticket &lt;i&gt;4711") {
				t.Errorf("the page does not say who, and why:\n%s", body)
			}
			entries := s.entries()
			if len(entries) != 1 || entries[0].Who != "ada" || entries[0].Action != do ||
				entries[0].Why != "ticket <i>4711</i>" ||
				entries[0].What == "" || entries[0].Time.IsZero() || entries[0].Error != "" {
				t.Errorf("the audit log has %+v", entries)
			}
		})
	}
}

// A plan shows all that its action changes: outboxes change rows by message ID, in all topics, and a replay of a topic
// is of that topic.
func TestPlan_OfRowsInSeveralTopics(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	s.box.mu.Lock()
	for _, topic := range []string{"orders", "audit"} {
		for i := range 750 {
			s.box.rows = append(s.box.rows, outbox.RowInfo{ID: numbered("row", i), Topic: topic, State: outbox.Dead})
		}
	}
	s.box.mu.Unlock()
	body := s.acts(Requeue, url.Values{"in": {"shop"}, "all": {"1"}}, nil)
	changed := strings.Count(strings.Join(s.box.states(), "\n"), "pending")
	if changed != 1500 || !strings.Contains(body, "1,500") {
		t.Errorf("%d rows were changed, and shown is\n%s", changed, body)
	}
	s.box.mu.Lock()
	for i := range s.box.rows {
		s.box.rows[i].State, s.box.rows[i].Ended = outbox.Published, time.Now().Add(-time.Hour)
	}
	s.box.mu.Unlock()
	s.acts(Replay, url.Values{"in": {"shop"}, "topic": {"audit"}, "row": {numbered("row", 7)}}, nil)
	s.box.mu.Lock()
	defer s.box.mu.Unlock()
	for _, row := range s.box.rows {
		if replayed := row.State == outbox.Pending; replayed != (row.ID == numbered("row", 7) && row.Topic == "audit") {
			t.Errorf("%s in %s is %s", row.ID, row.Topic, row.State)
		}
	}
}

// A redrive gets the plan that the page has shown, with every topic that it sends to.
func TestPlan_OfLettersForManyTopics(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).runs()
	for i := range 5 {
		id := numbered("m", i)
		s.finishes(key(id), dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "refused"})
		letter := s.letter(key(id), "refused")
		letter.Header[producer.HeaderTopic] = numbered("topic", i)
		s.dead.Add(letter)
	}
	form := url.Values{"do": {"redrive"}, "in": {"dead.billing"}, "token": {s.token()}}
	_, body, _ := s.post("plan", form)
	for i := range 5 {
		if topic := numbered("topic", i); !strings.Contains(body, topic) {
			t.Errorf("no %s in\n%s", topic, body)
		}
	}
	s.acts(Redrive, url.Values{"in": {"dead.billing"}}, nil)
	if sent := s.reruns.Sent(); len(sent) != 5 || sent[4] != numbered("topic", 4)+"/"+numbered("m", 4) {
		t.Errorf("sent %v", sent)
	}
}

// Without an ID or a reason, a filter of dead letters means all of them.
func TestPlan_OfNobodyIsNotForAll(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	if _, body := s.get("letter?in=dead.billing"); strings.Contains(body, "secret-payload") {
		t.Errorf("a letter without a position:\n%s", body)
	}
	for _, form := range []url.Values{
		{"do": {"redrive"}, "in": {"dead.billing"}, "pattern": {operate.OtherReasons}},
		{"do": {"redrive"}, "in": {"records"}, "letters": {"dead.billing"}, "state": {"failing"}, "handler": {"none"}},
		{"do": {"redrive"}, "in": {"records"}, "letters": {"dead.billing"}, "pattern": {operate.OtherReasons}},
	} {
		form.Set("token", s.token())
		if status, body, _ := s.post("plan", form); status != http.StatusBadRequest {
			t.Errorf("%v: status %d\n%s", form, status, body)
		}
	}
}

func TestActions_NeedRightTokenAndOrigin(t *testing.T) {
	t.Parallel()
	for do, form := range forms() {
		t.Run(string(do), func(t *testing.T) {
			t.Parallel()
			allowed := false
			s := newSite(t, func(c *Config) {
				c.Authorize = func(_ *http.Request, a Action) (string, error) {
					if a == View || a == do && allowed {
						return "ada", nil
					}
					return "", errors.New("not you")
				}
			}).fill().runs()
			before := s.state()
			token := s.token()
			form.Set("do", string(do))
			send := func(page string, token string, change func(*http.Request)) (int, string) {
				form.Set("token", token)
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url(page),
					strings.NewReader(form.Encode()))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				change(r)
				answer, err := s.browser.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				return read(t, answer)
			}
			plain := func(*http.Request) {}
			if status, body := send("plan", token, plain); status != http.StatusForbidden ||
				!strings.Contains(body, "not you") {
				t.Errorf("without the right: status %d\n%s", status, body)
			}
			allowed = true
			_, body := send("plan", token, plain)
			id := idField.FindStringSubmatch(body)
			if len(id) == 0 {
				t.Fatalf("no plan:\n%s", body)
			}
			form.Set("id", id[1])
			form.Set("outcome", "failed")
			form.Set("why", "because")
			foreign := map[string]func(*http.Request){
				"another site":   func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
				"a sibling site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
				"another origin": func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
				"no origin":      func(r *http.Request) { r.Header.Set("Origin", "null") },
			}
			for _, page := range []string{"plan", "act"} {
				for name, change := range foreign {
					if status, _ := send(page, token, change); status != http.StatusForbidden {
						t.Errorf("%s from %s: status %d", page, name, status)
					}
				}
				for name, wrong := range map[string]string{
					"none": "", "another": s.console.token("another session"), "half": token[:20],
				} {
					if status, _ := send(page, wrong, plain); status != http.StatusForbidden {
						t.Errorf("%s with the token %s: status %d", page, name, status)
					}
				}
				if status, _ := send(page, token, func(r *http.Request) { r.Method = http.MethodPut }); status != 405 {
					t.Errorf("%s by PUT: status %d", page, status)
				}
			}
			// The plan belongs to its session, and the right may be gone meanwhile.
			first := s.browser
			s.browser = newBrowser(t)
			if status, _ := send("act", s.token(), plain); status != http.StatusNotFound {
				t.Errorf("the plan of another session: status %d", status)
			}
			s.browser, allowed = first, false
			if status, _ := send("act", token, plain); status != http.StatusForbidden {
				t.Errorf("act without the right: status %d", status)
			}
			if after := s.state(); after != before {
				t.Errorf("something has changed:\n%s", after)
			}
			allowed = true
			if status, body := send("act", token, plain); status != http.StatusOK {
				t.Errorf("act: status %d\n%s", status, body)
			}
			if status, _ := send("act", token, plain); status != http.StatusNotFound {
				t.Errorf("act twice: status %d", status)
			}
		})
	}
}

// The zero value shows nothing.
func TestHandler_ZeroConfigShowsNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = nil }).fill().runs()
	for _, page := range append(screens(), "live?screen=overview") {
		if status, body := s.get(page); status != http.StatusForbidden || strings.Contains(body, "billing") ||
			!strings.Contains(body, "set Config.Authorize") {
			t.Errorf("%s: status %d\n%s", page, status, body)
		}
	}
}

func TestActions_ViewOnlyIsReadOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil).fill().runs()
	before := s.state()
	for do, form := range forms() {
		form.Set("do", string(do))
		form.Set("token", s.token())
		if status, body, _ := s.post("plan", form); status != http.StatusForbidden ||
			!strings.Contains(body, "console is read-only") {
			t.Errorf("%s: status %d\n%s", do, status, body)
		}
	}
	if s.state() != before {
		t.Error("something has changed")
	}
	for _, page := range screens() {
		if _, body := s.get(page); strings.Contains(body, `action="plan"`) && strings.Contains(body, `name="do"`) {
			t.Errorf("%s offers an action", page)
		}
	}
}

func TestActions_ViewIsARight(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) {
		c.Authorize = func(*http.Request, Action) (string, error) { return "", errors.New("log in first") }
	}).fill().runs()
	for _, page := range append(screens(), "live?screen=overview") {
		if status, body := s.get(page); status != http.StatusForbidden || strings.Contains(body, "billing") {
			t.Errorf("%s: status %d\n%s", page, status, body)
		}
	}
}

func TestPayloads_AbsentWithoutTheRight(t *testing.T) {
	t.Parallel()
	for _, may := range []bool{false, true} {
		s := newSite(t, func(c *Config) {
			c.Authorize = func(_ *http.Request, a Action) (string, error) {
				if a == Payloads && !may {
					return "", errReadOnly
				}
				return "ada", nil
			}
		}).fill().runs()
		found := 0
		for _, page := range screens() {
			_, body := s.get(page)
			found += strings.Count(body, "secret-")
		}
		if (found > 0) != may {
			t.Errorf("with the right: %v; payloads on pages: %d", may, found)
		}
	}
}

// A bulk action plans what the filter lets through, and refuses what has changed since.
func TestActions_OfAGroup(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	form := url.Values{"in": {"records"}, "pattern": {"card # refused"}, "state": {"failing"}, "do": {"rerun"},
		"token": {s.token()}}
	status, body, _ := s.post("plan", form)
	id := idField.FindStringSubmatch(body)
	if status != http.StatusOK || len(id) == 0 || !strings.Contains(body, "Rerun 2 records") {
		t.Fatalf("status %d\n%s", status, body)
	}
	if err := s.store.Change(t.Context(), s.look("bad-2"), dedupstore.Rerun{}); err != nil {
		t.Fatal(err)
	}
	_, _, at := s.post("act", url.Values{"id": {id[1]}, "token": {s.token()}})
	body = s.eventually(strings.TrimPrefix(at, "/console/"), `data-announce>done<`)
	if !strings.Contains(body, `id="task-changed">1<`) || !strings.Contains(body, "look again") {
		t.Errorf("want one changed and one refused:\n%s", body)
	}
	results := []string{}
	for _, e := range s.entries() {
		results = append(results, e.Result)
	}
	slices.Sort(results)
	if !slices.Equal(results, []string{"changed", "refused"}) {
		t.Errorf("the audit log has %q", results)
	}
	// Everything at once is not offered.
	form = url.Values{"do": {"forget"}, "token": {s.token()}}
	if status, _, _ := s.post("plan", form); status != http.StatusBadRequest {
		t.Errorf("a plan without a choice: status %d", status)
	}
}

func (s *site) look(id string) dedupstore.Record {
	s.Helper()
	records, err := s.store.Look(s.Context(), []dedupstore.Key{key(id)})
	if err != nil {
		s.Fatal(err)
	}
	return records[0]
}

// An archived failure is not listed by reason, until it fails again.
func TestArchive_ComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Authorize = everything }).fill().runs()
	s.acts(Archive, url.Values{"in": {"records"}, "key": {key("doubtful").String()}}, url.Values{"why": {"known"}})
	s.eventually("failures", "1 archived")
	for _, page := range []string{"failures", "failures?list=1"} {
		if _, body := s.get(page); strings.Contains(body, messageLink(key("doubtful"))) ||
			strings.Contains(body, "no answer from the bank") {
			t.Errorf("%s still lists it", page)
		}
	}
	s.eventually(messageLink(key("doubtful")), "Archived by ada")
	if err := s.store.Change(t.Context(), s.look("doubtful"), dedupstore.Rerun{}); err != nil {
		t.Fatal(err)
	}
	s.finishes(key("doubtful"), dedupstore.Outcome{Kind: dedupstore.Unknown, Reason: "no answer from the bank"})
	s.eventually("failures", "no answer from the bank")
}

func TestNotes_AreKeptInAFile(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/notes"
	notes, err := OpenNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	r := dedupstore.Record{Key: key("x"), Fence: 7}
	for _, n := range []Note{
		{Store: "s", Key: r.Key.String(), Fence: 7, Why: "known"},
		{Store: "s", Key: key("old").String(), Fence: 7, Expires: time.Now().Add(-time.Hour)},
	} {
		if err := notes.add(n); err != nil {
			t.Fatal(err)
		}
	}
	notes.Close()
	if notes, err = OpenNotes(path); err != nil {
		t.Fatal(err)
	}
	defer notes.Close()
	if n := notes.of("s", &r); n == nil || n.Why != "known" {
		t.Errorf("the note is %+v", n)
	}
	if notes.of("other", &r) != nil || notes.of("s", &dedupstore.Record{Key: key("old"), Fence: 7}) != nil {
		t.Error("a note of another store, or an expired one, was found")
	}
	if _, err := OpenNotes(t.TempDir()); err == nil {
		t.Error("a folder was opened")
	}
}

// Whatever somebody wrote, the notes can be read again.
func TestNotes_LongOnesAreReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes")
	n, err := OpenNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	why := strings.Repeat("why ", 50_000)
	if err := errors.Join(n.add(Note{Store: "records", Key: "k", Why: why}), n.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err = OpenNotes(path); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if note := n.all[noted{"records", "k", 0}]; note == nil || note.Why != why {
		t.Error("the note is not there")
	}
}

// A full disk takes a part of a note. The next one begins a line.
func TestNotes_WhatWasWrittenInPartIsTakenBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes")
	n, err := OpenNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	file := n.file
	n.file = &fullDisk{file}
	if err := n.add(Note{Store: "s", Key: "torn"}); err == nil {
		t.Error("a full disk is no error")
	}
	n.file = file
	if err := errors.Join(n.add(Note{Store: "s", Key: "next"}), n.Close()); err != nil {
		t.Fatal(err)
	}
	if n, err = OpenNotes(path); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if len(n.all) != 1 || n.all[noted{"s", "next", 0}] == nil {
		t.Errorf("the notes are %v", n.all)
	}
}

// A fullDisk has room for ten bytes of each note.
type fullDisk struct{ notesFile }

func (d *fullDisk) Write(b []byte) (int, error) {
	n, _ := d.notesFile.Write(b[:10])
	return n, syscall.ENOSPC
}

func TestNotes_ACrashInTheMiddleOfOneCostsThatOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes")
	for i, key := range []string{"first", "torn", "third"} {
		n, err := OpenNotes(path)
		if err != nil {
			t.Fatalf("before the %s note: %v", key, err)
		}
		if err := errors.Join(n.add(Note{Store: "s", Key: key}), n.Close()); err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			text, err := os.ReadFile(path)
			if err := errors.Join(err, os.WriteFile(path, text[:len(text)-20], 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n, err := OpenNotes(path)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if len(n.all) != 2 || n.all[noted{"s", "torn", 0}] != nil {
		t.Errorf("the notes are %v", n.all)
	}
}
