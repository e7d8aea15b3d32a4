package oncemill

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/dedupstore"
)

// A claim that waited for long is granted while its lease is about to be cut: its work goes on.
func TestLease_ThatIsRenewedMeanwhileIsNotCut(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	g := &Guard{log: slog.New(slog.NewTextHandler(&log, nil))}
	l := &lease{claim: &dedupstore.Claim{Lease: time.Minute}, deadline: time.Now()}
	if _, cut := l.due(time.Now()); !cut {
		t.Fatal("a lease that ends now is not to be cut")
	}
	l.setDeadline(time.Now(), time.Minute)
	l.handler = cancelFunc(func(error) { t.Error("the work of a lease that holds was cancelled") })
	g.cut(l)
	if log.Len() > 0 {
		t.Errorf("the log says %q", log.String())
	}
}
