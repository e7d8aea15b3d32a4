module github.com/oncemill/oncemill/internal/testserver/cassandratest

go 1.26.0

require (
	github.com/apache/cassandra-gocql-driver/v2 v2.0.0
	github.com/oncemill/oncemill v0.0.0
)

require gopkg.in/inf.v0 v0.9.1 // indirect

replace github.com/oncemill/oncemill => ../../..
