package sourcetest

import (
	"testing"
	"testing/synctest"

	"github.com/oncemill/oncemill/internal/recorder"
)

func TestRunVirtual_AcceptsAWorkingSource(t *testing.T) {
	t.Parallel()
	RunVirtual(t, func(*testing.T) Subject { return newToy("").subject() })
}

func TestRun_AcceptsAWorkingSource(t *testing.T) {
	t.Parallel()
	Run(t, func(*testing.T) Subject { return newToy("").subject() })
}

// Rules, and the case that rejects a source that breaks them.
var broken = []struct{ rule, name string }{
	{"forgets-acks", "decisions/ack-ends-a-message"},
	{"hands-over-under-a-lock", "decisions/may-be-made-at-once"},
	{"retries-at-once", "decisions/retry-comes-again-and-not-early"},
	{"rejects-by-ack-of-retries", "decisions/retry-comes-again-and-not-early"},
	{"stops-at-a-retry", "decisions/a-retry-holds-up-no-other"},
	{"rejections-come-again", "decisions/rejection-ends-a-message"},
	{"leaves-by-ack", "decisions/left-alone-comes-again"},
	{"never-delivers-again", "decisions/left-alone-comes-again"},
	{"headers-are-shared", "deliveries/are-what-was-published"},
	{"names-the-handler", "deliveries/are-what-was-published"},
	{"counts-from-zero", "deliveries/are-what-was-published"},
	{"another-processor", "deliveries/have-a-processor-that-guards-them"},
	{"no-heartbeats", "deadline/a-long-handler-gets-one-delivery"},
	{"forgets-acks", "copies/run-once-and-all-end"},
	{"keeps-nothing", "busy/keys-use-up-no-delivery"},
	{"waiting-takes-all-places", "busy/keys-hold-up-no-free-one"},
	{"keeps-nothing", "outage/uses-up-no-delivery"},
	{"acks-everything", "outage/nothing-is-lost"},
	{"order-ignored", "order/kept-through-failures-and-retries"},
	{"order-ignored", "order/kept-over-a-drain"},
	{"gives-back-behind-others", "order/kept-over-a-drain"},
	{"too-many-at-once", "in-flight/no-more-than-configured"},
	{"one-at-a-time", "in-flight/several-at-once"},
	{"contexts-end-with-run", "drain/calls-go-on-and-their-decisions-count"},
	{"does-not-wait", "drain/calls-go-on-and-their-decisions-count"},
	{"drops-decisions-of-the-drain", "drain/calls-go-on-and-their-decisions-count"},
	{"handles-all-that-is-left", "drain/the-rest-is-given-back"},
	{"loses-what-it-gives-back", "drain/what-waits-is-given-back"},
	{"drain-waits-for-retries", "drain/what-waits-is-given-back"},
	{"no-grace", "drain/contexts-end-with-the-grace"},
	{"short-grace", "drain/contexts-end-with-the-grace"},
	{"leaks", "end/nothing-is-left-running"},
	{"delivers-to-all", "members/share-the-messages"},
	{"ends-with-its-broker", "faults/broker-restarts"},
	{"never-delivers-again", "faults/lost-acks"},
	{"gives-back-what-is-anothers", "faults/moved-to-another-member"},
	{"first-error-steers-the-batch", "batches/errors-steer-their-own-messages"},
}

func TestRun_RejectsABrokenSource(t *testing.T) {
	t.Parallel()
	for _, b := range broken {
		t.Run(b.rule+"/"+b.name, func(t *testing.T) {
			t.Parallel()
			rejects(t, b.name, b.rule)
		})
	}
}

// rejects wants the case to reject a source that breaks the rule, and to say why.
func rejects(t *testing.T, name, rule string) {
	t.Helper()
	for _, c := range cases {
		if c.name != name {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			b := newToy(rule)
			r := recorder.Record(t, func(tb testing.TB) { c.check(tb, b.subject(), nil) })
			close(b.leaks)
			r.WantRejected(name, c.why)
		})
		return
	}
	t.Fatalf("there is no case %q", name)
}

func TestCases_HaveNamesOfTheirOwnAReasonAndABrokenSource(t *testing.T) {
	t.Parallel()
	rejecting, seen := map[string]bool{}, map[string]bool{}
	for _, b := range broken {
		rejecting[b.name] = true
	}
	for _, c := range cases {
		if c.name == "" || c.why == "" || seen[c.name] || !rejecting[c.name] {
			t.Errorf("case %q: why it exists: %q; seen before: %t; rejects a broken source: %t", c.name, c.why,
				seen[c.name], rejecting[c.name])
		}
		seen[c.name] = true
	}
}

// What a source lacks is not asked of it, and the report says so.
func TestRun_AsksForNothingThatASourceLacks(t *testing.T) {
	t.Parallel()
	for _, c := range cases {
		s := Subject{Lacks: map[Capability]string{}}
		for _, need := range c.needs {
			s.Lacks[need] = "a reason"
		}
		if len(c.needs) > 0 && c.missing(&s) != "the source lacks "+string(c.needs[0])+": a reason" {
			t.Errorf("%s: %q", c.name, c.missing(&s))
		}
	}
}
