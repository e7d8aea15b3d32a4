package main

// outbox is the way of a message from a business transaction to a handler.
func outbox() *picture {
	p := &picture{
		name: "outbox", width: 880, height: 344,
		title: "The way of a message through the outbox",
		desc: "A service writes its own rows and an outbox row in one transaction. A rollback leaves neither. A relay leases " +
			"committed rows, publishes them, and marks those that the broker acknowledged. A row without an answer is " +
			"published again with the same ID, so the broker may hold a copy; the consumer's claim suppresses it. A row " +
			"that the broker refuses too often becomes a dead row and blocks its own key at most.",
	}
	p.area(box{20, 20, 220, 232}, "one database transaction")
	rows := p.box("step", box{40, 52, 180, 56}, "your rows", "INSERT INTO orders …")
	row := p.box("step", box{40, 160, 180, 60}, "outbox row", "box.In(tx).Publish")
	relay := p.box("step", box{370, 154, 130, 72}, "relay", "outbox.Relay")
	broker := p.box("area", box{590, 154, 100, 72}, "broker")
	consumer := p.box("good", box{750, 154, 112, 72}, "consumer", "claims the ID,", "runs once")
	dead := p.box("bad", box{370, 272, 130, 52}, "dead row", "refused too often")

	p.arrow("", rows.bottom(), row.top())
	p.note("start", point{140, 138}, "same commit")
	p.note("middle", point{130, 241}, "a rollback leaves neither")

	p.arrow("", row.right().move(0, -10), relay.left().move(0, -10))
	p.note("middle", point{305, 172}, "lease a batch")
	p.arrow("", relay.left().move(0, 14), row.right().move(0, 14))
	p.note("middle", point{305, 221}, "mark published")

	p.arrow("", relay.right().move(0, -10), broker.left().move(0, -10))
	p.note("middle", point{544, 172}, "publish")
	p.arrow("dashed", broker.left().move(0, 14), relay.right().move(0, 14))
	p.note("middle", point{545, 221}, "ack")

	p.arrow("", relay.top().move(-30, 0), point{405, 118}, point{465, 118}, relay.top().move(30, 0))
	p.note("middle", point{435, 92}, "no answer: publish again", "with the same ID")

	p.arrow("", broker.right(), consumer.left())
	p.note("end", point{862, 116}, "a copy has the same ID:", "its claim finds the outcome")

	p.arrow("", relay.bottom(), dead.top())
	p.note("start", point{512, 294}, "holds up its own order key at most,", "until somebody requeues or discards it")
	return p
}
