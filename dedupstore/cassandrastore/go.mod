module github.com/oncemill/oncemill/dedupstore/cassandrastore

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/apache/cassandra-gocql-driver/v2 v2.0.0
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/internal/lineartest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/cassandratest v0.0.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
)

replace (
	github.com/oncemill/oncemill => ../..
	github.com/oncemill/oncemill/internal/lineartest => ../../internal/lineartest
	github.com/oncemill/oncemill/internal/testserver/cassandratest => ../../internal/testserver/cassandratest
)
