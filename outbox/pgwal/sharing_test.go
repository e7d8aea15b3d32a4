package pgwal_test

import (
	"testing"

	"github.com/oncemill/oncemill/outbox/pgwal"
)

// A relay confirms what it does not publish: with the slot of others their messages would be lost, without a word.
func TestRelay_RefusesTheSlotOfOthers(t *testing.T) {
	t.Parallel()
	rows, messages := newRig(t), newRig(t, func(c *pgwal.Config) { c.Prefix = c.Slot + ".eu" })
	for _, owner := range []*rig{rows, messages} {
		whose := "." + "oncemill_outbox"
		if owner == messages {
			whose = messages.config.Prefix
		}
		for name, other := range map[string]*rig{
			"table":    newRig(t),
			"messages": newRig(t, func(c *pgwal.Config) { c.Prefix = messages.config.Slot + "-eu" }),
		} {
			shared := func(c *pgwal.Config) { c.Slot = owner.config.Slot }
			for what, err := range map[string]error{
				"Setup": other.relay(shared).Setup(t.Context()), "Run": other.run(shared), "Drop": other.relay(shared).Drop(t.Context()),
			} {
				t.Log(name, what)
				wantSetupError(t, err, owner.config.Slot, whose, "set Config.Slot")
			}
		}
		owner.start()
		owner.write(message("order"))
		until(t, "the message", func() bool { return len(owner.broker.got()) == 1 })
	}
}
