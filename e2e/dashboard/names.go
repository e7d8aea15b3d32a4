package dashboard

import "fmt"

// Metrics by the names that Prometheus gives them, scraped or by OTLP.
const (
	claims        = "oncemill_claims_total"
	failures      = "oncemill_failures_total"
	shadowClaims  = "oncemill_shadow_claims_total"
	claimTime     = "oncemill_claim_duration_seconds"
	handlerTime   = "messaging_process_duration_seconds"
	handlers      = "oncemill_handler_active"
	delay         = "oncemill_duplicate_delay_seconds"
	renewals      = "oncemill_lease_renewals_total"
	takeovers     = "oncemill_lease_takeovers_total"
	losses        = "oncemill_lease_losses_total"
	storeErrors   = "oncemill_store_errors_total"
	oversize      = "oncemill_outputs_oversize_total"
	pending       = "oncemill_outbox_pending"
	oldest        = "oncemill_outbox_oldest_age_seconds"
	lag           = "oncemill_outbox_relay_lag_seconds"
	batch         = "oncemill_outbox_relay_batch_size"
	deaths        = "oncemill_outbox_deaths_total"
	sent          = "messaging_client_sent_messages_total"
	sendTime      = "messaging_client_operation_duration_seconds"
	brokerRepeats = "oncemill_broker_duplicates_total"

	// Of github.com/redis/go-redis/extra/redisotel, if the program has it.
	redisConns    = "db_client_connections_usage"
	redisTime     = "db_client_connections_use_time_milliseconds"
	redisTimeouts = "db_client_connections_timeouts"
)

// Labels.
const (
	outcome     = "oncemill_outcome"
	cause       = "oncemill_duplicate_cause"
	group       = "messaging_consumer_group_name"
	destination = "messaging_destination_name"
	table       = "oncemill_outbox_table"
)

// Conditions on labels.
const (
	ofJob   = `job=~"$job"`
	ofGroup = ofJob + `,` + group + `=~"$group",` + destination + `=~"$destination"`
	ofTable = ofJob + `,` + table + `=~"$table"`

	// A duplicate that was answered. One in progress is held or sent back, and counted again when it is answered; so is a
	// delivery whose claim failed.
	duplicate = outcome + `=~"duplicate_(completed|failed|unknown)"`
	answered  = outcome + `!~"duplicate_in_progress|not_due|store_error"`
)

func rate(metric string, conditions ...string) string {
	return fmt.Sprintf("rate(%s{%s}[$__rate_interval])", metric, joined(conditions))
}

// grown is how much a counter grew in the time that is shown.
func grown(metric string, conditions ...string) string {
	return fmt.Sprintf("increase(%s{%s}[$__range])", metric, joined(conditions))
}

// within is how many events there were in the time that is shown, however few.
func within(metric string, conditions ...string) string {
	return during("$__range", metric, conditions)
}

// lately is how many events there were from one point of a picture to the next, however few.
func lately(metric string, conditions ...string) string {
	return during("$__rate_interval", metric, conditions)
}

// during is how many events there were in a time. A counter that began in that time, with its first events, has not grown by
// them: what it has counts, if that is more. One that was there before, and was missing because its process could not be scraped,
// did not begin.
func during(time, metric string, conditions []string) string {
	series := metric + "{" + joined(conditions) + "}"
	more := "increase(" + series + "[" + time + "])"
	missed := "last_over_time(" + series + "[10m] offset " + time + ") and on (job, instance) up offset " + time + " == 0"
	begun := "(" + series + " unless " + series + " offset " + time + " unless (" + missed + "))"
	return begun + " > " + more + " or " + more + " or " + begun
}

// per divides by something, where there is any of it: nothing over nothing is no number, and makes none of every sum that it
// is part of.
func per(expr, of string) string { return expr + " / (" + of + " > 0)" }

func sumBy(labels, of string) string { return fmt.Sprintf("sum by (%s) (%s)", labels, of) }

func sum(of string) string { return "sum(" + of + ")" }

// orZero makes a number of a counter that has not counted yet.
func orZero(expr string) string { return "(" + expr + " or vector(0))" }

// quantile is one of a histogram, for each value of the labels.
func quantile(q float64, labels, histogram string, conditions ...string) string {
	if labels != "" {
		labels = ", " + labels
	}
	return fmt.Sprintf("histogram_quantile(%g, %s)", q, sumBy("le"+labels, rate(histogram+"_bucket", conditions...)))
}

func joined(conditions []string) string {
	all := ""
	for i, c := range conditions {
		if i > 0 {
			all += ","
		}
		all += c
	}
	return all
}
