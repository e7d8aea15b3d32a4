package main

// tiers shows where a second effect is possible, and where not.
func tiers() *picture {
	p := &picture{
		name: "tiers", width: 880, height: 416,
		title: "The two tiers, and the gap in the first",
		desc: "Tier 1, the leased claim: the effect and the outcome are two writes to two places. A crash in the gap between " +
			"them lets the next delivery run again, and a second effect is possible. Tier 2, the inbox: effect and outcome " +
			"are one commit. A crash before it leaves neither, a crash after it leaves both, so the next delivery is a duplicate.",
	}
	p.heading(point{20, 32}, "Tier 1: leased claim")
	p.note("start", point{180, 32}, "any store, any handler")
	claim := p.box("step", box{20, 60, 124, 56}, "claim", "in the store")
	effect := p.box("step", box{204, 60, 150, 56}, "effect", "in another place")
	gap := p.box("bad", box{414, 60, 120, 56}, "the gap", "a crash here")
	outcome := p.box("step", box{594, 60, 150, 56}, "outcome", "in the store")
	ack := p.box("good", box{790, 60, 70, 56}, "ack")
	p.arrow("", claim.right(), effect.left())
	p.arrow("", effect.right(), gap.left())
	p.arrow("", gap.right(), outcome.left())
	p.arrow("", outcome.right(), ack.left())
	p.arrow("dashed", gap.bottom(), point{gap.bottom().x, 144}, point{claim.bottom().x, 144}, claim.bottom())
	p.warning("start", point{96, 164}, "The next delivery runs the handler again: a second effect is possible.")
	p.note("start", point{96, 181}, "Send Run.ID as the idempotency key, and the other service can refuse the second one.")

	p.heading(point{20, 226}, "Tier 2: inbox")
	p.note("start", point{124, 226}, "handlers that write to the database that has the records")
	p.area(box{186, 246, 574, 108}, "one transaction")
	claim = p.box("step", box{20, 278, 124, 56}, "claim", "in the database")
	effect = p.box("step", box{204, 278, 150, 56}, "effect", "your rows")
	rows := p.box("step", box{399, 278, 150, 56}, "outbox rows", "what to publish")
	outcome = p.box("step", box{594, 278, 150, 56}, "outcome", "compares the owner")
	ack = p.box("good", box{790, 278, 70, 56}, "ack")
	p.arrow("", claim.right(), effect.left())
	p.arrow("", effect.right(), rows.left())
	p.arrow("", rows.right(), outcome.left())
	p.arrow("", outcome.right(), ack.left())
	p.note("middle", point{473, 378}, "A crash before the commit leaves nothing: the next delivery runs the handler.")
	p.note("middle", point{473, 396}, "A crash after it leaves effect and outcome: the next delivery is a duplicate.")
	return p
}
