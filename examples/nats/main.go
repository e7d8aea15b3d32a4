// The NATS example is two services on one JetStream stream: a producer that places orders and a consumer that charges
// for them. The producer publishes some orders again, the bank times out and declines, the consumer restarts half way.
// At the end it closes the books.
//
//	go run ./examples/nats -embedded
//
// needs nothing but Go. Without -embedded it uses the servers of compose.yaml:
//
//	docker compose up -d --wait
//	go run ./examples/nats
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

var example = billing.Example{Name: "nats", AddressFlag: "nats", Address: "nats://127.0.0.1:4222", Open: open}
