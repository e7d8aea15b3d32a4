package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/outbox"
)

// act goes through a plan: it shows what will change, and is confirmed with a reason.
func act(p *tab, wants ...string) {
	p.t.Helper()
	p.do(chromedp.WaitVisible(chromedp.CSS("#confirm")))
	p.wants("main", wants...)
	p.fits()
	p.accessible()
	if eval[bool](p, `!!document.querySelector('[name="outcome"]')`) {
		p.click(`[name="outcome"][value="succeeded"]`)
	}
	p.fill("#why", "agreed with the bank")
	p.follow("#yes")
	p.until(`document.querySelector("#task-state")?.innerText.includes("done")`)
	if eval[bool](p, `[...document.querySelectorAll("#halt, #rest")].some((e) => e.checkVisibility())`) {
		p.t.Errorf("%s offers to stop what has ended, or to go on", eval[string](p, "location.href"))
	}
}

func TestConsole_EachActionOfARecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	for i, tc := range []struct {
		do     console.Action
		id     string
		become func(dedupstore.Record) bool
	}{
		{console.Forget, "failed-001", func(r dedupstore.Record) bool { return r.State == dedupstore.Absent }},
		{console.Rerun, "failed-002",
			func(r dedupstore.Record) bool { return r.State == dedupstore.Retryable && r.Reruns == 1 }},
		{console.Complete, "unknown-1",
			func(r dedupstore.Record) bool { return r.Outcome.Kind == dedupstore.Succeeded }},
		{console.Archive, "failed-003", func(r dedupstore.Record) bool { return r.Outcome.Kind == dedupstore.Failed }},
	} {
		k := key("charge", tc.id)
		p.open(w.url + "message?in=records&key=" + k.String())
		p.follow("#do-" + string(tc.do))
		if i == 0 {
			p.shoot("plan")
		}
		act(p, tc.id)
		if i == 0 {
			p.shoot("task")
		}
		if r := w.look(k); !tc.become(r) {
			t.Errorf("after %s it is %+v", tc.do, r)
		}
		all := w.entries()
		last := all[len(all)-1]
		if len(all) != i+1 || last.Action != tc.do || last.Who != "ada" || last.Why != "agreed with the bank" ||
			last.Result != "changed" || (last.Outcome != "") != (tc.do == console.Complete) ||
			last.Where != "records" || last.What != k.String() {
			t.Errorf("the audit log says %+v", last)
		}
	}
	p.open(w.url + "message?in=records&key=" + key("charge", "failed-003").String())
	p.wants("#story", "Archived by ada", "agreed with the bank")
	p.follow("#do-restore")
	act(p, "failed-003")
	p.open(w.url + "log")
	p.wants("#changes", "ada", "restore", "archive", "complete", "rerun", "forget", "agreed with the bank")
	p.shoot("log-of-changes")
}

func TestConsole_ActionsOfMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	p.open(w.url + "failures")
	p.until(`document.querySelector("#reasons a")`)
	p.follow("#reasons a") // the commonest reason
	p.wants("main", "card declined")
	if first := eval[string](p, `document.querySelector('main [name="do"]').value`); first != "redrive" {
		t.Errorf("the first action of a group is %s", first)
	}
	p.follow("#all-redrive")
	act(p, "card declined", "9")
	p.open(w.url + "failures")
	p.until(`document.querySelector("#reasons a")?.textContent.includes("gateway")`) // those have run
	p.follow("#reasons a")
	p.follow("#all-rerun")
	act(p, "4 ", "A rerun delivers nothing")
	p.wants("#undelivered", "redrive their dead letters")
	p.follow("#do-redrive")
	p.wants("main", "letters of 4 messages")
	n := 0
	for i := range 4 {
		if w.look(key("charge", fmt.Sprintf("failed-%03d", 9+i))).State == dedupstore.Retryable {
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d of 4 run again", n)
	}

	p.open(w.url + "failures?letters=dead.billing")
	p.wants("#dead-letters", "succeeded since")
	eval[bool](p, `document.querySelector('#dead-letters [name="at"]').click(), true`)
	p.follow("#redrive-chosen")
	p.wants("main", "chosen letters")
	act(p, "1")
	p.open(w.url + "failures?letters=dead.billing")
	p.follow("#redrive-letters")
	act(p, "2")
	if n := len(w.reruns.Sent()); n != 12 {
		t.Errorf("%d messages were sent", n)
	}
	p.open(w.url + "failures?letters=dead.billing&reason=declined")
	p.follow("#discard-letters")
	act(p, "9")
	if n := len(w.deadLetters.All()); n != 3 {
		t.Errorf("%d letters are left", n)
	}
}

func TestConsole_ActionsOfTheOutbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	count := func(s outbox.State) (n int) {
		page, err := w.box.List(t.Context(), outbox.Filter{States: []outbox.State{s}}, "")
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Rows)
	}
	dead, published := count(outbox.Dead), count(outbox.Published)
	p.open(w.url + "outbox?state=dead")
	p.click(`#rows tbody input[type="checkbox"]`)
	p.follow("#do-discard")
	act(p, "1 row")
	if n := count(outbox.Dead); n != dead-1 {
		t.Errorf("%d rows are dead, want %d", n, dead-1)
	}
	p.open(w.url + "outbox?state=dead")
	p.click("#rows input.all")
	p.follow("#do-requeue")
	act(p, fmt.Sprintf("%d rows", dead-1))
	if n := count(outbox.Dead); n != 0 {
		t.Errorf("%d rows are dead", n)
	}
	p.open(w.url + "outbox?state=published")
	p.click(`input[name="all"]`)
	p.follow("#do-replay")
	act(p, fmt.Sprintf("%d rows", published))
	if n := count(outbox.Published); n != 0 {
		t.Errorf("%d rows are published", n)
	}
}

// A visitor who may only look is offered no action, sees no payload, and is refused a form made by hand.
func TestConsole_ReadOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	p := newTab(t)
	for path, hidden := range map[string]string{
		"message?in=records&key=" + key("charge", "order-4711").String(): "charged",
		"letter?in=dead.billing&at=100":                                  "hunter2",
	} {
		p.open(w.url + path)
		p.wants("main", "hidden")
		if html := eval[string](p, `document.documentElement.outerHTML`); strings.Contains(html, hidden) {
			t.Errorf("%s has %q in it", path, hidden)
		}
	}
	for _, path := range []string{
		"", "messages", "failures", "failures?list=1", "outbox?state=dead",
		"message?in=records&key=" + key("charge", "failed-000").String(),
	} {
		p.open(w.url + path)
		if n := eval[int](p, `document.querySelectorAll('[name="do"], [id^="do-"], #confirm').length`); n > 0 {
			t.Errorf("%s offers %d actions", path, n)
		}
	}
	p.shoot("read-only")

	// A form that somebody makes by hand, with a genuine token.
	p.open(w.url + "failures")
	p.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`(() => {
		const f = document.querySelector("#recount");
		f.action = "plan";
		f.innerHTML += '<input name="do" value="forget"><input name="in" value="records"><input name="key" value=%q>';
	})()`, key("charge", "failed-000").String())))
	p.follow("#recount button")
	p.wants("main", "read-only")
	p.forget() // the status, 403
	if r := w.look(key("charge", "failed-000")); r.State != dedupstore.Finished || len(w.entries()) > 0 {
		t.Errorf("it was changed: %+v, %+v", r, w.entries())
	}
}

// Somebody who may not look sees nothing.
func TestConsole_StrangersSeeNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(*http.Request, console.Action) (string, error) {
		return "", errors.New("strangers stay outside")
	})
	p := newTab(t)
	for _, path := range []string{"", "messages", "failures", "outbox", "health", "live?screen=overview"} {
		p.open(w.url + path)
		if text := p.text("body"); !strings.Contains(text, "strangers stay outside") ||
			strings.Contains(text, "order-") {
			t.Errorf("%s shows %s", path, text)
		}
	}
	p.forget() // the statuses, 403
}

// Another site makes the browser of somebody who may do everything send forms.
func TestConsole_OtherSitesCannotAct(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	here, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	k := key("charge", "failed-000").String()
	token := ""
	site := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(to, `<title>elsewhere</title><link rel="icon" href="data:,">
			<form id="f" method="post" action="%splan"><input name="token" value="%s">
			<input name="do" value="forget"><input name="in" value="records"><input name="key" value="%s">
			<button>Win</button></form>`,
			w.url, token, k)
	}))
	t.Cleanup(site.Close)
	p := newTab(t)
	p.open(w.url + "failures") // so the browser has the cookie
	token = eval[string](p, `document.querySelector('[name="token"]').value`)
	for name, address := range map[string]string{
		"another port": site.URL, "another name": strings.Replace(site.URL, "127.0.0.1", "localhost", 1),
	} {
		p.open(address)
		p.follow("#f button")
		if at := eval[string](p, "location.href"); !strings.HasPrefix(at, "http://"+here.Host) {
			t.Errorf("%s: the form went to %s", name, at)
		}
		if text := p.text("body"); strings.Contains(text, "Forget") {
			t.Errorf("%s: %s", name, text)
		}
	}
	// The same form from the console itself works, with the token only.
	p.open(w.url + "message?in=records&key=" + k)
	p.do(chromedp.Evaluate[chromedp.Void](
		`document.querySelectorAll('[name="token"]').forEach((e) => { e.value = "forged"; })`))
	p.follow("#do-forget")
	p.wants("main", "the form is old")
	p.forget() // the statuses, 403
	if r := w.look(key("charge", "failed-000")); r.State != dedupstore.Finished || len(w.entries()) > 0 {
		t.Errorf("it was changed: %+v, %+v", r, w.entries())
	}
}
