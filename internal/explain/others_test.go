package explain

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A group is a store in which handlers of the group billing have had a message.
type group struct {
	*testing.T
	*dedupstore.Memory
	looked int // at how many keys
}

func newGroup(t *testing.T) *group {
	t.Helper()
	m, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return &group{T: t, Memory: m}
}

func (g *group) Look(ctx context.Context, keys []dedupstore.Key) ([]dedupstore.Record, error) {
	g.looked += len(keys)
	return g.Memory.Look(ctx, keys)
}

// handles has a handler of that name end the message so, so many minutes ago.
func (g *group) handles(handler string, kind dedupstore.Kind, ago int) {
	g.Helper()
	k := key
	k.Handler = handler
	p := &past{T: g.T, store: g.Memory}
	c := p.claims("billing-1:417", func(r *dedupstore.Request) { r.Key = k })
	settlement := dedupstore.Finish{Outcome: dedupstore.Outcome{Kind: kind}, Retention: window}
	if err := dedupstore.SettleOne(g.Context(), g.Memory, c, settlement); err != nil {
		g.Fatal(err)
	}
	at := time.Now().Add(-time.Duration(ago) * time.Minute)
	if err := g.NoteScopes(g.Context(), []dedupstore.ScopeUse{{Scope: k.Scope(), First: at, Last: at}}); err != nil {
		g.Fatal(err)
	}
}

// effects is what the story of the message says of effects, told of a handler.
func (g *group) effects(handler string) string {
	g.Helper()
	k := key
	k.Handler = handler
	records, err := g.Memory.Look(g.Context(), []dedupstore.Key{k})
	if err != nil {
		g.Fatal(err)
	}
	return Tell(&records[0], time.Now(), Others(g.Context(), g, k)).Effects
}

func TestTell_SaysUnderWhichOtherNamesTheGroupHandledIt(t *testing.T) {
	t.Parallel()
	const once = "Its effect happened once."
	g := newGroup(t)
	g.handles("settle", dedupstore.Succeeded, 60)
	if got := g.effects("settle"); got != once {
		t.Errorf("of one handler: %q", got)
	}
	g.handles("settle-v2", dedupstore.Succeeded, 1)
	g.handles("~settle", dedupstore.Succeeded, 1)
	g.handles("refuse", dedupstore.Failed, 1)
	for handler, other := range map[string]string{"settle": "settle-v2", "settle-v2": "settle"} {
		want := once + " The same group handled it as " + other +
			", too: if one is a new name of the other, its effect happened twice."
		if got := g.effects(handler); got != want {
			t.Errorf("of %s: %q, want %q", handler, got, want)
		}
	}
	if got := g.effects("refuse"); strings.Contains(got, "twice") {
		t.Errorf("of a handler that failed: %q", got)
	}
	if got := g.effects("settle-v3"); got != "" {
		t.Errorf("of a handler that has not had it: %q", got)
	}
}

func TestOthers_LooksAtTheTwentyThatWereUsedLast(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	for i := range 30 {
		g.handles(fmt.Sprint("handler-", i), dedupstore.Succeeded, i)
	}
	if others := Others(t.Context(), g, key); len(others) != 20 || g.looked != 20 || others[0].Key.Handler != "handler-0" {
		t.Errorf("%d others, %d keys looked at", len(others), g.looked)
	}
	if others := Others(t.Context(), struct{ dedupstore.Inspector }{g}, key); others != nil {
		t.Errorf("a store that remembers no names has %d others", len(others))
	}
}

// Steps have the message's ID, and names that begin with their handler's.
func TestTell_StepsUnderTheirMessage(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.handles("charge", dedupstore.Succeeded, 1)
	g.handles("charge/step=mail", dedupstore.Succeeded, 2)
	g.handles("charge/step=card", dedupstore.Unknown, 3)
	g.handles("charges/step=card", dedupstore.Succeeded, 3)
	g.handles("ship", dedupstore.Failed, 3)
	records, err := g.Look(t.Context(), []dedupstore.Key{key})
	if err != nil {
		t.Fatal(err)
	}
	story := Tell(&records[0], time.Now(), Others(t.Context(), g, key))
	if len(story.Steps) != 2 || strings.Contains(story.Effects, "handled it as") {
		t.Fatalf("%+v", story)
	}
	names := map[string]string{}
	for _, s := range story.Steps {
		names[s.Name] = s.Headline
	}
	if !strings.HasPrefix(names["mail"], "It succeeded") || !strings.HasPrefix(names["card"], "Nobody knows") {
		t.Errorf("steps are %q", names)
	}
	steps, err := StepsIn(g).Of(t.Context(), key)
	if err != nil || len(steps) != 2 || !MessagesOf(records).HaveStep(steps[0].Key) ||
		MessagesOf(steps).HaveStep(key) {
		t.Errorf("steps of it are %v, %v", steps, err)
	}
}

// A step may hold steps, and a handler's name may begin with another's.
func TestMessages_HaveStep(t *testing.T) {
	t.Parallel()
	messages := MessagesOf([]dedupstore.Record{{Key: key}})
	for handler, want := range map[string]bool{
		"charge": false, "charge/step=card": true, "charge/step=card/step=auth": true, "charges/step=card": false,
		"ship/step=charge": false, "re/charge/step=card": false,
	} {
		of := key
		of.Handler = handler
		if got := messages.HaveStep(of); got != want {
			t.Errorf("%s: %t, want %t", handler, got, want)
		}
		if of.ID = "order-18"; messages.HaveStep(of) {
			t.Errorf("%s of another message is taken for a step", handler)
		}
	}
}
