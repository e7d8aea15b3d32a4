package console_test

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/internal/testserver"
)

// startQuickstart starts the quickstart with -console in a process of its own, and returns the address of its books.
func startQuickstart(t *testing.T, args ...string) (books string, p *testserver.Process) {
	t.Helper()
	needBrowser(t)
	program := filepath.Join(t.TempDir(), "quickstart")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program,
		"github.com/oncemill/oncemill/examples/quickstart")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the quickstart: %v\n%s", err, out)
	}
	p, err := testserver.StartProgram(t.TempDir(), program, append([]string{"-console"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	at := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)
	err = testserver.Until(t.Context(), func() error {
		if books = at.FindString(p.Output()); books == "" {
			return exec.ErrNotFound
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	return books, p
}

// A newcomer sees the books grow, sees a charge that was made twice, and is two clicks from knowing why Oncemill did
// not make it: the order, then the outcome that its duplicates got. With -update the test plays all orders, which takes
// a minute, and writes the picture of the README.
func TestQuickstart_NewcomerSeesWhyAMessageWasSuppressed(t *testing.T) {
	t.Parallel()
	orders := "40"
	if *update {
		orders = "300"
	}
	books, quickstart := startQuickstart(t, "-orders", orders)
	p := newTab(t)
	p.open(books)
	p.until(`/[1-9]\d* of ` + orders + ` orders placed/.test(document.body.innerText)`)
	p.until(`document.querySelector(".wrong td.bad")`) // it comes by itself
	p.accessible()
	p.fits()
	p.untilWithin(4*waitLimit, `document.querySelector(".progress").innerText.includes("the books are closed")`)
	p.draws()
	p.wants(".stacks", "DOUBLE CHARGES", "balances", "does not balance")
	p.shoot("books")

	clicks := 0
	click := func(selector string) {
		t.Helper()
		clicks++
		p.follow(selector)
	}
	order := eval[string](p, `[...document.querySelectorAll(".wrong tbody tr")]
		.find((r) => r.innerText.includes("producer retries") && r.children[3].innerText.includes("charged twice"))
		.querySelector("a").id`)
	click(`[id="` + order + `"]`)
	p.wants("h1", order)
	p.wants("#story", "It succeeded", "Its effect happened once.")
	p.wants("#timeline", "duplicate came, and got the outcome")
	p.shoot("books-message")
	if clicks > 4 {
		t.Errorf("%d clicks", clicks)
	}

	// Without a script the page reloads itself.
	p.script(false)
	p.open(books)
	if text := bodyOf(p); !strings.Contains(text, "the books are closed") {
		t.Error(text)
	}
	if err := quickstart.Stop(); err != nil || quickstart.ExitCode() != 0 {
		t.Errorf("the quickstart ended with %d, %v\n%s", quickstart.ExitCode(), err, quickstart.Output())
	}
}
