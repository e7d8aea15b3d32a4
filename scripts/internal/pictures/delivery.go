package main

// delivery is what happens to one delivery of a message.
func delivery() *picture {
	p := &picture{
		name: "delivery", width: 880, height: 440,
		title: "The way of a delivery: claim, attempt, settle, ack",
		desc: "Each delivery claims its message ID in the store. The first one gets the claim, runs the handler, stores the " +
			"outcome, publishes what the handler produced, and is acknowledged. A duplicate gets the stored outcome and is " +
			"acknowledged without a run. A delivery whose key is busy waits and comes again later. After a crash the lease " +
			"ends, and the next delivery takes the run over. A failure releases the claim and is tried again later; the " +
			"last one is stored, and its dead letter is published before the ack.",
	}
	message := p.box("area", box{20, 150, 110, 64}, "delivery", "message ID")
	claim := p.box("step", box{180, 150, 130, 64}, "claim", "one atomic step")
	attempt := p.box("step", box{384, 150, 130, 64}, "attempt", "the handler runs")
	settle := p.box("step", box{564, 150, 120, 64}, "settle", "outcome stored")
	ack := p.box("good", box{790, 150, 70, 64}, "ack")
	p.arrow("", message.right(), claim.left())
	p.arrow("", claim.right(), attempt.left())
	p.note("middle", point{345, 174}, "granted")
	p.arrow("", attempt.right(), settle.left())
	p.arrow("", settle.right(), ack.left())
	p.note("middle", point{735, 157}, "outputs are", "published")

	duplicate := p.box("good", box{384, 24, 300, 52}, "duplicate: stored outcome, no run")
	p.arrow("", claim.top(), point{claim.top().x, duplicate.left().y}, duplicate.left())
	p.note("start", point{254, 68}, "has an outcome")
	p.arrow("", duplicate.right(), point{ack.top().x, duplicate.right().y}, ack.top())

	busy := p.box("wait", box{170, 290, 150, 64}, "busy: wait", "another run is on")
	p.arrow("", claim.bottom(), busy.top())
	p.note("start", point{253, 248}, "live lease,", "or not due")
	p.arrow("", busy.left(), point{message.bottom().x, busy.left().y}, message.bottom())
	p.note("start", point{83, 248}, "later")

	crash := p.box("bad", box{344, 290, 120, 64}, "crash", "the lease ends")
	p.arrow("dashed", point{crash.top().x, attempt.bottom().y}, crash.top())
	p.arrow("", crash.bottom(), point{crash.bottom().x, 376}, point{48, 376}, point{48, message.bottom().y})
	p.note("start", point{60, 392}, "the next delivery takes the run over")

	retry := p.box("wait", box{488, 290, 150, 64}, "failure: release", "attempts are left")
	p.arrow("", settle.bottom().move(-30, 0), point{594, retry.top().y})
	p.arrow("", retry.bottom(), point{retry.bottom().x, 406}, point{34, 406}, point{34, message.bottom().y})
	p.note("start", point{60, 422}, "the broker delivers again, after a backoff")

	last := p.box("bad", box{662, 290, 198, 64}, "last failure: stored", "then the dead letter")
	p.arrow("", settle.bottom().move(30, 0), point{654, 252}, point{714, 252}, point{714, last.top().y})
	p.arrow("", point{ack.bottom().x, last.top().y}, ack.bottom())
	return p
}
