// Package stock has only tests, of Watermill's stock adapters for Kafka, NATS and RabbitMQ, with
// oncewatermill.Middleware in the Router. They keep the promises of docs/brokers.md, with the settings that the page
// names, and what docs/adopting.md says of taking a group over. Their reports of sourcetest say what each can do.
package stock
