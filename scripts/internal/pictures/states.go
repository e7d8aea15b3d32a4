package main

// states is the protocol's record: docs/protocol.md has the rules.
func states() *picture {
	p := &picture{
		name: "states", width: 880, height: 430,
		title: "The states of a record",
		desc: "A claim makes an absent record RUNNING. A finish makes it DONE, or PUBLISHING if there is something to " +
			"publish; published makes that DONE. A release makes a RUNNING record RETRYABLE, and a claim makes it RUNNING " +
			"again when it is due. When a lease ends, a claim takes the run over, or only the publishing. A rerun on " +
			"request makes a failure RUNNING again.",
	}
	absent := p.box("area", box{20, 150, 110, 52}, "ABSENT")
	running := p.box("step", box{216, 140, 170, 72}, "RUNNING", "owner, lease, fence")
	done := p.box("good", box{670, 132, 190, 88}, "DONE", "succeeded, failed, unknown:", "for the dedup window")
	publishing := p.box("step", box{490, 280, 170, 72}, "PUBLISHING", "the outcome is stored")
	retryable := p.box("wait", box{216, 314, 170, 72}, "RETRYABLE", "not before a time")

	p.arrow("", absent.right(), running.left())
	p.note("middle", point{173, 168}, "claim")

	p.arrow("", running.right().move(0, -10), done.left().move(0, -10))
	p.note("middle", point{528, 158}, "finish: nothing to publish")

	p.arrow("", running.right().move(0, 14), point{publishing.top().x, 190}, publishing.top())
	p.note("end", point{566, 212}, "finish: messages or a", "dead letter to publish;")
	p.note("end", point{566, 244}, "or a claim: lease ended,", "attempts spent or parked")

	p.arrow("", publishing.right(), point{done.bottom().x, publishing.right().y}, done.bottom())
	p.note("start", point{668, 336}, "published: keeps the IDs,", "drops the bytes")

	p.arrow("", running.bottom().move(-70, 0), retryable.top().move(-70, 0))
	p.note("end", point{222, 262}, "release: failed,", "may be tried again")
	p.arrow("", retryable.top().move(70, 0), running.bottom().move(70, 0))
	p.note("end", point{364, 269}, "claim, when due")

	p.arrow("", running.top().move(-50, 0), point{251, 104}, point{311, 104}, running.top().move(10, 0))
	p.note("end", point{244, 96}, "claim, lease ended: taken over;", "fence and attempt grow")

	p.arrow("", publishing.bottom().move(-30, 0), point{545, 384}, point{605, 384}, publishing.bottom().move(30, 0))
	p.note("middle", point{575, 404}, "claim, lease ended: publish only")

	p.arrow("dashed", done.top(), point{done.top().x, 48}, point{350, 48}, point{350, running.top().y})
	p.note("middle", point{565, 40}, "a rerun of a failure, on request, once")
	return p
}
