// Package stock has no code of its own. Its tests keep the promises of docs/brokers.md about Watermill's stock Kafka
// adapter, watermill-kafka/v3, under oncewatermill.Middleware and the settings of that page. They also keep those of
// docs/adopting.md about taking its group over.
package stock
