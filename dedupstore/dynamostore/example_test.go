package dynamostore_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
)

func ExampleNew() {
	ctx := context.Background()
	var conf aws.Config // config.LoadDefaultConfig reads it from the environment
	client := dynamodb.NewFromConfig(conf)
	if err := dynamostore.CreateTable(ctx, client, dynamostore.Table("oncemill")); err != nil { // once
		log.Fatal(err)
	}
	store, err := dynamostore.New(client, dynamostore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	report, err := store.Check(ctx) // at start-up
	if err != nil {
		log.Fatal(err)
	}
	log.Println(report.Warnings)
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		log.Fatal(err)
	}
	_ = guard // guards handlers: see oncemill.Do
}
