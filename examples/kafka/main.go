// The Kafka example is two services on one topic: a producer that places orders and a consumer that charges for them.
// The producer publishes some orders again, the bank times out and declines, the consumer restarts half way. At the end
// it closes the books.
//
//	go run ./examples/kafka -embedded
//
// needs nothing but Go: Kafka is played by kfake in this process. Without -embedded it uses the servers of
// compose.yaml:
//
//	docker compose --profile kafka up -d --wait
//	go run ./examples/kafka
//
// You would write producer.go and consumer.go yourself. Exit status: 0 if the books balance, 1 if they do not or
// something broke, 2 for wrong flags.
package main

import (
	"context"
	"os"

	"github.com/oncemill/oncemill/examples/internal/billing"
)

func main() { os.Exit(example.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

var example = billing.Example{Name: "kafka", AddressFlag: "brokers", Address: "127.0.0.1:9092", Open: open}
