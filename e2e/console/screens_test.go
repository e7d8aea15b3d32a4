package console_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/oncemill/oncemill/dedupstore"
)

// Each screen says what is there, fits a phone, has nothing that keeps people out, and needs no script.
func TestConsole_ScreensSayWhatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	charged := "message?in=records&key=" + key("charge", "order-4711").String()
	tabs := make(chan *tab, 2) // a new one for each screen would take longer than the screen
	for range cap(tabs) {
		tabs <- newTab(t)
	}
	for name, tc := range map[string]struct {
		path  string
		wants []string
		live  string // what comes with the first sample
	}{
		"overview": {"", []string{
			"Overview", "Deliveries by outcome", "Why duplicates came", "billing / charge",
		}, "allkeys-lru"},
		"messages":       {"messages", []string{"Messages", "order-100", "succeeded"}, ""},
		"messages-none":  {"messages?id=never-seen", []string{"No record of this message"}, ""},
		"messages-state": {"messages?state=unknown", []string{"unknown-0", "unknown-2"}, ""},
		"message": {charged, []string{
			"order-4711", "It succeeded", "the payment gateway timed out", "Duplicates", "billing-7f9c4",
			`{"charged":4711}`, "The same ID in other handlers",
		}, ""},
		"message-failed": {"message?in=records&key=" + key("charge", "failed-000").String(),
			[]string{"It failed", "card declined", "Rerun"}, ""},
		"message-running": {"message?in=records&key=" + key("receipt", "running-0").String(),
			[]string{"running", "Next"}, ""},
		"message-unknown": {"message?in=records&key=" + key("charge", "unknown-0").String(),
			[]string{"Nobody knows", "Complete"}, ""},
		"failures":      {"failures", []string{"Failures", "Dead letters", "dead.billing"}, "card declined"},
		"failures-list": {"failures?list=1", []string{"failed-000", "Rerun"}, ""},
		"failures-unknown": {"failures?state=unknown", []string{
			"unknown outcomes", "unknown-0", "unknown-2", "Complete",
		}, ""},
		"letters":     {"failures?letters=dead.billing", []string{"failed-003", "Redrive"}, ""},
		"letter":      {"letter?in=dead.billing&at=100", []string{"hunter2", "failed-000"}, ""},
		"outbox":      {"outbox", []string{"Outbox", "Rows"}, "orders.created"},
		"outbox-dead": {"outbox?state=dead", []string{"maximum payload exceeded", "Requeue"}, ""},
		"log":         {"log", []string{"Log", "Nobody has changed anything"}, ""},
		"archived":    {"failures?archived=1", []string{"Failures", "archived failures", "No failure is left here"}, ""},
		"health":      {"health", []string{"Health"}, "allkeys-lru"},
		"sorry":       {"messages?state=odd", []string{"want one of"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := <-tabs
			p.t = t
			defer func() { tabs <- p }()
			p.script(true)
			p.open(w.url + tc.path)
			if tc.live != "" {
				p.until(fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, tc.live))
			}
			p.wants("body", tc.wants...)
			p.shoot(name)
			if problems := p.forget(); len(problems) > 0 && name != "sorry" { // which has the status 400
				t.Errorf("the browser's console says: %q", problems)
			}

			// And without a script.
			p.script(false)
			p.open(w.url + tc.path)
			if text := bodyOf(p); !strings.Contains(text, tc.wants[0]) {
				t.Errorf("without a script it does not say %q:\n%s", tc.wants[0], text)
			}
			p.forget()
		})
	}
}

// bodyOf is the text of a page that runs no script.
func bodyOf(p *tab) string {
	p.t.Helper()
	return get(p, chromedp.Text(chromedp.CSS("body")))
}

// What people search, filter and page through without a script and with keys alone.
func TestConsole_WorksWithoutAScript(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	p.script(false)
	p.open(w.url)
	p.do(chromedp.SendKeys(chromedp.CSS("#search"), "order-4711"+kb.Enter),
		chromedp.WaitVisible(chromedp.CSS("#messages")))
	p.follow(`#messages a[title="order-4711"]`)
	if text := bodyOf(p); !strings.Contains(text, "It succeeded") {
		t.Error(text)
	}
	p.follow(`nav a[href="messages"]`)
	p.follow("#next")
	if text := bodyOf(p); !strings.Contains(text, "Messages") {
		t.Error(text)
	}
	p.follow(`nav a[href="failures"]`)
	p.do(chromedp.WaitVisible(chromedp.CSS("#reasons a")))
	p.follow("#reasons a")
	p.do(chromedp.WaitVisible(chromedp.CSS("#failed")))
}

func TestConsole_WorksWithKeysAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	p.open(w.url)
	p.until(`document.querySelector("#pulse.on")`)
	p.keys("?")
	p.until(`document.querySelector("#keys").open`)
	p.keys(kb.Escape)
	p.until(`!document.querySelector("#keys").open`)
	for _, to := range []struct{ key, path string }{
		{"m", "/messages"}, {"f", "/failures"}, {"b", "/outbox"}, {"h", "/health"}, {"o", "/"},
	} {
		eval[bool](p, `!(Date.now = () => 1)`) // the second key has to come soon, and on a busy machine it does not
		p.keys("g", to.key)
		p.until(fmt.Sprintf(`location.pathname.endsWith(%q) && document.readyState === "complete"`, to.path))
	}
	p.keys("/")
	p.until(`document.activeElement.id === "search"`)
	p.keys("order-4711", kb.Enter)
	p.until(`document.querySelector("#messages") && document.readyState === "complete"`)
	p.keys("j")
	p.until(`document.activeElement.matches("#messages a.row")`)
	p.keys(kb.Enter)
	p.until(`document.querySelector("#story") && document.readyState === "complete"`)
	p.wants("#story", "succeeded")

	// The first stop is the way past the navigation; from there everything that can be clicked can be reached.
	p.keys(kb.Tab)
	p.until(`document.activeElement.classList.contains("skip")`)
	p.keys(kb.Enter)
	seen := map[string]bool{}
	for range 60 {
		p.keys(kb.Tab)
		seen[eval[string](p, `document.activeElement.id || document.activeElement.className`)] = true
	}
	for _, id := range []string{"do-forget", "trace"} {
		if !seen[id] {
			t.Errorf("Tab never comes to %s: %v", id, seen)
		}
	}
}

// A live part shows what is new by itself. What has the focus keeps it.
func TestConsole_ShowsWhatIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	p.open(w.url)
	p.until(`document.querySelector("#pulse.on") && document.querySelector("#tiles a")`)
	rate := func() string { return p.text("#deliveries") }
	before := rate()
	eval[bool](p, `document.querySelector('#tiles a[href="failures"]').focus() ?? true`)
	w.claim(key("charge", "brand-new"))
	p.until(`[...document.querySelectorAll("#tiles div")]
		.some((d) => /running/i.test(d.innerText) && d.innerText.includes("5"))`)
	p.until(fmt.Sprintf(`document.querySelector("#deliveries").innerText !== %q`, before))
	p.until(`document.activeElement.getAttribute("href") === "failures"`)

	// Times are kept true, and their exact form is in the viewer's zone.
	title := eval[string](p, `document.querySelector("main time").title`)
	if !strings.ContainsAny(title, "0123456789") {
		t.Errorf("the exact time is %q", title)
	}
}

// Nothing of an ID, a reason or a result becomes markup.
func TestConsole_MarkupStaysText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	evil := key("charge", `<b onmouseover="alert(1)">&amp;</b>`)
	p.open(w.url + "message?in=records&key=" + strings.ReplaceAll(evil.String(), "%", "%25"))
	p.wants("body", evil.ID, "<script>alert(1)</script>", "<img src=x onerror=alert(1)>")
	for _, path := range []string{"failures?list=1", "messages?state=failed"} {
		p.open(w.url + path)
		p.wants("body", evil.ID)
		if n := eval[int](p, `document.querySelectorAll("main b[onmouseover], main img, main script").length`); n > 0 {
			t.Errorf("%s: %d elements were made of text", path, n)
		}
	}
}

// A right-to-left override is shown as a character that nobody knows, and turns no text round.
func TestConsole_TextKeepsItsDirection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, everything)
	p := newTab(t)
	evil := key("charge", "order-\u202e71000-redro")
	w.end(evil, dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "paid \u202edeliaf ton"})
	for _, path := range []string{"messages?state=failed", "message?in=records&key=" + url.QueryEscape(evil.String())} {
		p.open(w.url + path)
		p.wants("main", "order-\ufffd71000-redro", "paid \ufffddeliaf ton")
		if eval[bool](p, `/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)`) {
			t.Errorf("%s obeys what turns text round", path)
		}
	}
}
