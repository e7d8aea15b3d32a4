module github.com/oncemill/oncemill/dedupstore/pgstore

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/internal/lineartest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/postgrestest v0.0.0
	github.com/oncemill/oncemill/outbox/pgoutbox v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/gowebpki/jcs v1.0.2 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.47.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace (
	github.com/oncemill/oncemill => ../..
	github.com/oncemill/oncemill/internal/lineartest => ../../internal/lineartest
	github.com/oncemill/oncemill/internal/testserver/postgrestest => ../../internal/testserver/postgrestest
	github.com/oncemill/oncemill/outbox/pgoutbox => ../../outbox/pgoutbox
)
