package health_test

import (
	"fmt"

	"github.com/oncemill/oncemill/consumer/health"
)

// What a look at a server found. natsjs.Diagnose and franz.Diagnose return such reports.
func ExampleReport() {
	replicas := 1
	var r health.Report
	r.Looked = append(r.Looked, "stream ORDERS")
	r.Judge("stream ORDERS",
		health.LosesIf(replicas < 3, "it has one replica: whatever its server loses is lost; set Replicas to 3"),
		health.UnwiseIf(false, "its duplicate window is short"))
	for _, f := range r.Found {
		fmt.Printf("%s: %s: %s\n", f.Severity, f.Subject, f.Finding)
	}
	// Output: error: stream ORDERS: it has one replica: whatever its server loses is lost; set Replicas to 3
}
