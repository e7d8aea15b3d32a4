package pgwal_test

import "testing"

// A relay confirms what it does not publish: with the slot of others their messages would be lost, without a word.
func TestRelay_RefusesTheSlotOfOthers(t *testing.T) {
	t.Parallel()
	owner, other := newRig(t), newRig(t)
	shared := func(c *settings) { c.Slot = owner.config.Slot }
	for what, err := range map[string]error{
		"Setup": other.relay(shared).Setup(t.Context()), "Run": other.run(shared), "Drop": other.relay(shared).Drop(t.Context()),
	} {
		t.Log(what)
		wantSetupError(t, err, owner.config.Slot, ".oncemill_outbox", "set Config.Slot")
	}
	owner.start()
	owner.write(message("order"))
	until(t, "the message", func() bool { return len(owner.broker.got()) == 1 })
}
