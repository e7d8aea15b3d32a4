package dashboard

import "fmt"

func consumerGroup() Dashboard {
	return page("oncemill-group", "Oncemill / Consumer group",
		"Handlers, claims and leases of one consumer group.", append(sources(false), groupChoices(claims)...),
		row{"Work", 9, []Panel{
			series("Handler duration", "s", "How long do handlers run? Duplicates run none. The dots lead to traces.",
				over("half of them", quantile(0.5, "", handlerTime, ofGroup)),
				over("95 %", quantile(0.95, "", handlerTime, ofGroup)),
				over("99 %", quantile(0.99, "", handlerTime, ofGroup)).exemplified()),
			series("Handler errors", "ops", "How do runs fail?",
				over("{{error_type}}", sumBy("error_type", rate(handlerTime+"_count", ofGroup, `error_type!=""`)))).stacked(),
			series("Handlers running", "short", "How many handlers are at work at this moment?",
				over("{{oncemill_handler}}", sumBy("oncemill_handler", handlers+"{"+ofGroup+"}"))),
		}},
		row{"Claims", 9, []Panel{
			series("Outcomes of the group", "ops", "How are the group's deliveries answered?",
				over("{{"+outcome+"}}", sumBy(outcome, rate(claims, ofGroup)))).stacked().coloured(outcomeColours),
			series("Claim latency of the service", "s", "How long do claims take? This is added to every message, duplicate or not.",
				over("{{oncemill_store}}", quantile(0.99, "oncemill_store", claimTime, ofJob)).exemplified()),
		}},
		row{"Leases", 9, []Panel{
			series("Lease renewals", "ops", "Do heartbeats reach the store? They are counted for the whole service.",
				over("{{oncemill_result}}", sumBy("oncemill_result", rate(renewals, ofJob)))),
			series("Takeovers", "short", "How often did a message run again because its holder had stopped renewing its lease?",
				over("{{"+group+"}}", sumBy(group, lately(takeovers, ofGroup)))),
			series("Leases lost", "short", "How often did a running handler lose its claim to another?",
				over("{{"+group+"}}", sumBy(group, lately(losses, ofJob, group+`=~"$group"`)))),
		}},
		row{"Worth a look", 9, []Panel{
			series("Messages failed", "short", "How many messages ended as failed (permanent), with their attempts spent (exhausted), or with nobody knowing what happened (unknown)?",
				over("{{oncemill_result}}", sumBy("oncemill_result", lately(failures, ofGroup))).exemplified()),
			series("Failures replayed", "ops", "How many duplicates get a stored failure, or an outcome that nobody knows?",
				over("{{"+outcome+"}}", sumBy(outcome, rate(claims, ofGroup, outcome+`=~"duplicate_(failed|unknown)"`)))),
			series("Other content under a known ID", "short", "How many messages had the ID of another one?",
				over("{{"+destination+"}}", sumBy(destination, lately(claims, ofGroup, outcome+`="fingerprint_mismatch"`))).exemplified()),
			series("Rejected or unguarded", "short", "How many messages could not be claimed at all: no usable ID, or no store?",
				over("{{"+outcome+"}} {{oncemill_bypass_reason}}", sumBy(outcome+", oncemill_bypass_reason",
					lately(claims, ofGroup, outcome+`=~"rejected|bypassed|store_error"`)))),
		}},
		row{"Limits", 5, []Panel{
			stat("Late duplicates", "percentunit", "Which share of the duplicates of a day came later than 12 h, half of the default window?",
				late(), above(0.001, "yellow"), above(0.01, "red")),
			stat("Attribute sets dropped", "short", "How many series hold what was beyond a limit of attribute sets? Their numbers are right, their labels are lost.",
				orZero("count("+ours(`otel_metric_overflow="true"`)+" or "+ours(destination+`="_OTHER"`)+" or "+
					ours(group+`="_OTHER"`)+")"),
				above(1, "yellow")),
		}},
	)
}

// ours are the series of all metrics of a job that meet a condition.
func ours(condition string) string {
	return `{__name__=~"oncemill_.*|messaging_.*",` + ofJob + "," + condition + "}"
}

// late is the share of duplicates beyond the bucket of 12 hours. Scraped buckets are written 43200.0, others 43200.
func late() string {
	day := func(le string) string {
		return sum(fmt.Sprintf("increase(%s_bucket{%s,%s,le=~%q}[1d])", delay, ofGroup, duplicate, le))
	}
	return "1 - " + per(day(`43200(\.0)?`), day(`\+Inf`))
}

// quantileOver is a quantile over a fixed time.
func quantileOver(q float64, histogram, time string, conditions ...string) string {
	return fmt.Sprintf("histogram_quantile(%g, sum by (le) (increase(%s_bucket{%s}[%s])))", q, histogram, joined(conditions), time)
}
