package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/oncemill/oncemill/internal/testserver"
)

// waitLimit bounds every wait for the browser.
const waitLimit = 5 * time.Minute

// A browserProcess is one Chromium for all tests of this package.
type browserProcess struct {
	ctx  context.Context
	stop func()
}

var (
	startBrowser sync.Once
	browser      browserProcess
	browserErr   error
)

func TestMain(m *testing.M) {
	status := m.Run()
	if browser.stop != nil {
		browser.stop()
	}
	os.Exit(status)
}

// needBrowser returns the browser's context, or ends the test where there is none.
func needBrowser(t *testing.T) context.Context {
	t.Helper()
	path := testserver.NeedProgram(t, "chromium", "on Debian, as root: apt-get install chromium")
	startBrowser.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:],
			chromedp.ExecPath(path), chromedp.NoSandbox) // it loads nothing but what the tests serve
		alloc, stopAlloc := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, stop := chromedp.NewContext(alloc)
		browser = browserProcess{ctx, func() { stop(); stopAlloc() }}
		browserErr = chromedp.Do(ctx)
	})
	if browserErr != nil {
		t.Fatalf("start chromium: %v", browserErr)
	}
	testserver.Record(t, "chromium")
	return browser.ctx
}

// A tab is a page of the browser with cookies of its own.
type tab struct {
	t   *testing.T
	ctx func() context.Context

	mu       sync.Mutex
	problems []string // what the browser's console says is wrong
}

// newTab opens an empty tab. The test fails if the browser's console says that something is wrong.
func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(needBrowser(t), chromedp.WithNewBrowserContext())
	p := &tab{t: t, ctx: func() context.Context { return ctx }}
	t.Cleanup(func() {
		cancel()
		for _, problem := range p.forget() {
			t.Errorf("the browser's console says: %s", problem)
		}
	})
	if err := chromedp.Listen(ctx, p.listen); err != nil {
		t.Fatal(err)
	}
	p.size(1280, 800)
	return p
}

func (p *tab) listen(event any) {
	problem := ""
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		problem = e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			problem = string(e.Args[0].Value)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			problem = fmt.Sprintf("%s (%s)", e.Entry.Text, e.Entry.URL)
		}
	}
	if problem != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.problems = append(p.problems, problem)
	}
}

// forget returns what was wrong so far, and forgets it: of a page that is to fail.
func (p *tab) forget() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	problems := p.problems
	p.problems = nil
	return problems
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx(), waitLimit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%v\nat %s", err, p.where())
	}
}

// where is the page and its text, for failures.
func (p *tab) where() (text string) {
	ctx, cancel := context.WithTimeout(p.ctx(), 10*time.Second)
	defer cancel()
	text, _ = chromedp.Run(ctx,
		chromedp.Evaluate[string](`location.href + "\n" + document.body?.innerText.slice(0, 2000)`))
	return text
}

func (p *tab) size(width, height int64) {
	p.t.Helper()
	var options []chromedp.EmulateViewportOption
	if width < 600 {
		options = append(options, chromedp.EmulateMobile)
	}
	p.do(chromedp.EmulateViewport(width, height, options...))
}

func (p *tab) dark(yes bool) {
	p.t.Helper()
	value := map[bool]string{true: "dark", false: "light"}[yes]
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}},
	})
}

func (p *tab) script(on bool) {
	p.t.Helper()
	call(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
}

// call sends a command of the browser's protocol.
func call[P, R any](p *tab, c cdp.Command[P, R], params P) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx(), c, params); err != nil {
		p.t.Fatal(err)
	}
}

// open goes to an address.
func (p *tab) open(url string) { p.t.Helper(); p.do(chromedp.Navigate(url)) }

// click clicks the first element with the mouse, when it can be seen. Elements of live parts may be replaced meanwhile.
func (p *tab) click(selector string) {
	p.t.Helper()
	at := p.place(selector)
	p.do(chromedp.MouseClickXY(at[0], at[1]))
}

// follow clicks, and waits for the page that this leads to. A live page may move under the pointer: then it clicks
// again.
func (p *tab) follow(selector string) {
	p.t.Helper()
	var err error
	for range 5 {
		at := p.place(selector)
		ctx, cancel := context.WithTimeout(p.ctx(), waitLimit/10)
		_, err = chromedp.RunResponse(ctx, chromedp.MouseClickXY(at[0], at[1]))
		cancel()
		if err == nil {
			return
		}
	}
	p.t.Fatalf("follow %s: %v\nat %s", selector, err, p.where())
}

// place scrolls to an element, and returns where its middle is.
func (p *tab) place(selector string) [2]float64 {
	p.t.Helper()
	p.until(fmt.Sprintf(`document.querySelector(%q)?.checkVisibility()`, selector))
	return eval[[2]float64](p, fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: "center", behavior: "instant" });
		const b = e.getClientRects()[0];
		return [b.x + b.width / 2, b.y + b.height / 2];
	})()`, selector))
}

func (p *tab) fill(selector, text string) {
	p.t.Helper()
	p.do(chromedp.SetValue(chromedp.CSS(selector), text))
}

// keys types keys, such as "g" or kb.Enter. A letter is one event, so that a page can keep it from being written.
func (p *tab) keys(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		if len(k) != 1 || k[0] <= ' ' {
			p.do(chromedp.KeyEvent(k))
			continue
		}
		for _, kind := range []input.DispatchKeyEventType{kb.KeyDown, kb.KeyUp} {
			call(p, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: k, Text: k})
		}
	}
}

// until waits for a condition in the page's own language.
func (p *tab) until(condition string) {
	p.t.Helper()
	p.untilWithin(waitLimit, condition)
}

func (p *tab) untilWithin(atMost time.Duration, condition string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx(), atMost)
	defer cancel()
	for {
		met, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!!(`+condition+`)`))
		switch {
		case ctx.Err() != nil:
			p.t.Fatalf("waited too long until %s\nat %s", condition, p.where())
		case err == nil && met: // while a page loads there is an error
			return
		}
		testserver.Pause()
	}
}

// eval returns what an expression is.
func eval[T any](p *tab, expression string, options ...chromedp.EvaluateOption) T {
	p.t.Helper()
	return get(p, chromedp.Evaluate[T](expression, options...))
}

// get returns what an action finds.
func get[T any](p *tab, a chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx(), waitLimit)
	defer cancel()
	value, err := chromedp.Run(ctx, a)
	if err != nil {
		p.t.Fatalf("%v\nat %s", err, p.where())
	}
	return value
}

// text is what people read in an element; "" if it is not there.
func (p *tab) text(selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// wants fails the test unless an element has the texts.
func (p *tab) wants(selector string, texts ...string) {
	p.t.Helper()
	got := p.text(selector)
	for _, text := range texts {
		if !strings.Contains(got, text) {
			p.t.Errorf("%s does not say %q:\n%s", selector, text, got)
		}
	}
}

// fits fails the test if the page is wider than the window, or cuts something off that nobody can scroll to.
func (p *tab) fits() {
	p.t.Helper()
	if wide := eval[[]string](p, `(() => {
		const width = document.documentElement.clientWidth;
		const out = document.documentElement.scrollWidth <= width ? [] :
			[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > width + 1);
		const cut = [...document.querySelectorAll("#nav, .scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1 &&
			(e.id === "nav" || getComputedStyle(e).overflowX === "clip"));
		return out.concat(cut).map((e) => e.tagName + "#" + e.id + "." + e.className + " " + e.ariaLabel).slice(0, 5);
	})()`); len(wide) > 0 {
		p.t.Errorf("%s does not fit the window: %q", eval[string](p, "location.href"), wide)
	}
}

// axe is the folder with axe-core, which finds what keeps people with disabilities out.
const axe = "ONCEMILL_TEST_AXE"

var axeCore = sync.OnceValues(func() (string, error) {
	text, err := os.ReadFile(filepath.Join(os.Getenv(axe), "axe.min.js"))
	return string(text), err
})

// accessible fails the test if axe-core finds something on the page.
func (p *tab) accessible() {
	p.t.Helper()
	if os.Getenv(axe) == "" {
		p.t.Log("axe-core did not look: " + axe + " is empty")
		return
	}
	source, err := axeCore()
	if err != nil {
		p.t.Fatal(err)
	}
	p.do(chromedp.Evaluate[chromedp.Void](source))
	report := eval[string](p, `axe.run().then((r) => JSON.stringify(r.violations))`, chromedp.EvalAwaitPromise)
	var violations []struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	if err := json.Unmarshal([]byte(report), &violations); err != nil {
		p.t.Fatal(err)
	}
	for _, v := range violations {
		p.t.Errorf("%s: %s (%s, %s): %s\n%s", eval[string](p, "location.href"), v.Help, v.ID, v.Impact,
			v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
	}
}

// shots names the folder that gets a picture of each screen; empty: none are made.
const shots = "ONCEMILL_SHOTS"

// shoot takes pictures of the page: light and dark, wide and narrow. On the way it looks whether the page fits, and
// whether it keeps anybody out.
func (p *tab) shoot(name string) {
	p.t.Helper()
	for _, width := range []int64{1280, 390} {
		p.size(width, 800)
		p.fits()
		for _, colours := range []string{"light", "dark"} {
			p.dark(colours == "dark")
			if (width > 600) == (colours == "light") { // widths and colours do not depend on each other
				p.accessible()
			}
			p.picture(fmt.Sprintf("%s-%d-%s.png", name, width, colours))
		}
		p.dark(false)
	}
	p.size(1280, 800)
}

func (p *tab) picture(name string) {
	p.t.Helper()
	dir := os.Getenv(shots)
	if dir == "" {
		return
	}
	png := get(p, chromedp.FullScreenshot(100))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), png, 0o644); err != nil {
		p.t.Fatal(err)
	}
}
