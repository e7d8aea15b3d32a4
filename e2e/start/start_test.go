package start_test

import (
	"net/url"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/mysqltest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/postgrestest"
)

func TestStart_EachStepDoesAsPrinted(t *testing.T) {
	t.Parallel()
	database, err := url.Parse(postgrestest.Shared(t).NewDatabase(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	query := database.Query()
	query.Set("pool_max_conns", "40")
	database.RawQuery = query.Encode()
	server := natstest.Start(t)
	js := server.JetStream()
	handled := func() uint64 {
		cons, err := js.Consumer(t.Context(), "ORDERS", "billing")
		if err != nil {
			return 0 // there is no consumer yet
		}
		info := cons.CachedInfo()
		if info.NumPending > 0 || info.NumAckPending > 0 {
			return 0
		}
		return info.Delivered.Consumer
	}
	plays(t, "docs/start.md", 6, handled, "DATABASE_URL="+database.String(), "NATS_URL="+server.URL())
}

func TestStartKafka_EachStepDoesAsPrinted(t *testing.T) {
	t.Parallel()
	broker, database := kafkatest.Start(t), mysqltest.Shared(t).NewDatabase(t) // the page names topics and groups
	admin := kadm.NewClient(broker.Client())
	handled := func() (committed uint64) {
		offsets, err := admin.FetchOffsets(t.Context(), "billing")
		if err != nil {
			return 0
		}
		offsets.Each(func(o kadm.OffsetResponse) { committed += uint64(max(0, o.At)) })
		return committed
	}
	plays(t, "docs/start-kafka.md", 4, handled, "KAFKA="+broker.Addr, "DATABASE="+database.DSN(),
		"ONCEMILL_STORE="+database.URL(), "ONCEMILL_OUTBOX="+database.URL())
}
