package dashboard

import "strconv"

func store() Dashboard {
	variables := append(sources(false),
		choice("job", "Service", "label_values("+claimTime+"_count, job)"),
		choice("store", "Store", "label_values("+claimTime+`_count{job=~"$job"}, oncemill_store)`))
	const ofStore = ofJob + `,oncemill_store=~"$store"`
	return page("oncemill-store", "Oncemill / Store",
		"What the store of outcomes answers, how fast, and what happens when it does not.", variables,
		row{"Now", 4, []Panel{
			stat("Claims", "ops", "How many claims is the store asked for?", sum(rate(claimTime+"_count", ofStore))),
			stat("Claim p99", "s", "How long do 99 % of the claims take at most?",
				quantile(0.99, "", claimTime, ofStore), above(0.01, "yellow"), above(0.1, "red")),
			stat("Claims that failed", "percentunit", "Which share of the claims got no answer?",
				per(orZero(sum(rate(claimTime+"_count", ofStore, outcome+`="store_error"`))), sum(rate(claimTime+"_count", ofStore))),
				above(0.0001, "yellow"), above(0.01, "red")),
			stat("Fail open active", "short", "How many handlers ran unguarded because the store was down, in the time that is shown?",
				orZero(sum(within(claims, ofJob, outcome+`="bypassed",oncemill_bypass_reason="store_down"`))), above(1, "red")),
		}},
		row{"Speed", 9, []Panel{
			series("Claim latency by store", "s", "How long do claims take?",
				over("{{oncemill_store}} half of them", quantile(0.5, "oncemill_store", claimTime, ofStore)),
				over("{{oncemill_store}} 99 %", quantile(0.99, "oncemill_store", claimTime, ofStore)).exemplified()),
			heatmap("Claim duration", "s", "Are there two kinds of claims, fast and slow ones?",
				sumBy("le", "increase("+claimTime+"_bucket{"+ofStore+"}[$__rate_interval])")),
		}},
		row{"Load", 9, []Panel{
			series("Claims by store and answer", "ops", "What is the store asked for, and what does it say?",
				over("{{oncemill_store}} {{"+outcome+"}}", sumBy("oncemill_store, "+outcome, rate(claimTime+"_count", ofStore)))),
			series("Outputs too large to be kept", "short", "How many runs produced more than a record may hold? A crash while they are published runs the handler again.",
				over("{{"+group+"}}", sumBy(group, lately(oversize, ofJob)))),
		}},
		row{"Trouble", 9, []Panel{
			series("Store errors", "ops", "Which operations fail, and what does the policy do about it?",
				over("{{oncemill_store_operation}} {{error_type}} {{oncemill_store_policy}}",
					sumBy("oncemill_store_operation, error_type, oncemill_store_policy", rate(storeErrors, ofJob)))),
			series("Shadow mode", "ops", "What would have happened to the messages of services in shadow mode?",
				over("{{"+outcome+"}}", sumBy(outcome, rate(shadowClaims, ofJob)))).stacked().coloured(outcomeColours),
		}},
		row{"The Redis client, if it is instrumented with redisotel", 9, []Panel{
			series("Redis connections", "short", "Is the pool large enough?",
				over("{{state}}", sumBy("state", redisConns+"{"+ofJob+"}"))),
			series("Redis command latency", "ms", "How long do commands take, as the client sees it?",
				over("99 %", quantile(0.99, "", redisTime, ofJob))),
			series("Waits for a connection that timed out", "short", "How many commands found no free connection, since the start?",
				over("{{job}}", sumBy("job", "{__name__=~"+strconv.Quote(redisTimeouts+"(_total)?")+","+ofJob+"}"))),
		}},
	)
}
