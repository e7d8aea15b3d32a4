// Package stock has only tests, of Watermill's stock Kafka adapter, watermill-kafka/v3, with oncewatermill.Middleware
// in the Router. They keep the promises of docs/brokers.md, with the settings that the page names, and what
// docs/adopting.md says of taking its group over.
package stock
