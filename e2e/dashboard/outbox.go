package dashboard

func outbox() Dashboard {
	variables := append(sources(false),
		choice("job", "Service", "label_values("+pending+", job)"),
		choice("table", "Outbox", "label_values("+pending+`{job=~"$job"}, `+table+")"))
	return page("oncemill-outbox", "Oncemill / Outbox",
		"From the committed row to the broker's acknowledgement.", variables,
		row{"Now", 4, []Panel{
			stat("Rows pending", "short", "How many rows wait to be published? All relays of a table report the same number.",
				sum("max by (job, "+table+") ("+pending+"{"+ofTable+`,oncemill_outbox_state="pending"})`), above(10_000, "yellow")),
			stat("Oldest pending row", "s", "How long has the oldest of them been due?",
				"max("+oldest+"{"+ofTable+"})", above(10, "yellow"), above(60, "red")),
			stat("Rows dead", "short", "How many rows were refused for the last time? Nobody publishes them any more.",
				sum("max by (job, "+table+") ("+pending+"{"+ofTable+`,oncemill_outbox_state="dead"})`), above(1, "red")),
			stat("Relay lag p99", "s", "How long do 99 % of the rows take from commit to acknowledgement?",
				quantile(0.99, "", lag, ofTable), above(1, "yellow"), above(30, "red")),
		}},
		row{"The queue", 9, []Panel{
			series("Rows by state", "short", "Does the outbox grow?",
				over("{{job}} {{"+table+"}} {{oncemill_outbox_state}}", "max by (job, "+table+", oncemill_outbox_state) ("+pending+"{"+ofTable+"})")),
			series("Age of the oldest row", "s", "Does the relay keep up?",
				over("{{job}} {{"+table+"}}", "max by (job, "+table+") ("+oldest+"{"+ofTable+"})")),
		}},
		row{"The way to the broker", 9, []Panel{
			heatmap("Relay lag", "s", "How long does a message take from its row to the broker's acknowledgement?",
				sumBy("le", "increase("+lag+"_bucket{"+ofTable+"}[$__rate_interval])")),
			series("Relay lag by destination", "s", "Which destination is slow?",
				over("{{"+destination+"}}", quantile(0.99, destination, lag, ofTable)).exemplified()),
		}},
		row{"Sending", 9, []Panel{
			series("Messages sent", "ops", "How much is sent, and what is not acknowledged? An unknown one may have arrived and is sent again.",
				over("{{messaging_system}} {{error_type}}", sumBy("messaging_system, error_type", rate(sent, ofJob)))),
			series("Send duration", "s", "How long does the broker take to acknowledge?",
				over("{{messaging_system}}", quantile(0.99, "messaging_system", sendTime, ofJob))),
			series("Batch size", "short", "How many rows does a relay publish together?",
				over("mean", per(sum(rate(batch+"_sum", ofTable)), sum(rate(batch+"_count", ofTable)))),
				over("99 %", quantile(0.99, "", batch, ofTable))),
		}},
		row{"Trouble", 9, []Panel{
			series("Copies that the broker recognised", "short", "What does JetStream say it has already? Repeated: our own retry after a lost acknowledgement. Unexpected: it was published twice, or something else had this ID.",
				over("{{oncemill_result}}", sumBy("oncemill_result", lately(brokerRepeats, ofJob)))),
			series("Rows that died", "short", "On which destinations were rows refused for the last time?",
				over("{{"+destination+"}}", sumBy(destination, lately(deaths, ofTable)))),
		}},
	)
}
