package franz

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// What else it finds, the tests of the command oncemill show.
func TestDiagnose_Rights(t *testing.T) {
	t.Parallel()
	meta := kadm.Metadata{Topics: kadm.TopicDetails{"orders": {
		AuthorizedOperations: []kadm.ACLOperation{kadm.OpDescribe, kadm.OpRead},
	}}}
	for right, want := range map[kadm.ACLOperation]string{
		kadm.OpRead: "may not read its settings", kadm.OpWrite: "has no right to WRITE",
	} {
		var d diagnosis
		_, _, err := d.topicOf("orders", right, meta, nil)
		if err != nil || len(d.Found) != 1 || !strings.Contains(d.Found[0].Finding, want) {
			t.Errorf("found %q, %v, want %q", d.Found, err, want)
		}
	}
}
