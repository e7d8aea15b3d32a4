module github.com/oncemill/oncemill/dedupstore/mysqlstore

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/internal/lineartest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/mysqltest v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.47.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
)

replace (
	github.com/oncemill/oncemill => ../..
	github.com/oncemill/oncemill/internal/lineartest => ../../internal/lineartest
	github.com/oncemill/oncemill/internal/testserver/mysqltest => ../../internal/testserver/mysqltest
)
