package cassandrastore_test

import (
	"context"
	"log"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
)

func ExampleNew() {
	ctx := context.Background()
	session, err := gocql.NewCluster("cassandra-1", "cassandra-2").CreateSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	store, err := cassandrastore.New(session, cassandrastore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Migrate(ctx); err != nil { // once
		log.Fatal(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		log.Fatal(err)
	}
	_ = guard // guards handlers: see oncemill.Do
}
