// Package stock has no code of its own: its tests keep the promises that docs/brokers.md makes about Watermill's stock
// Kafka adapter, watermill-kafka/v3, with oncewatermill.Middleware in the Router and the settings that the page
// names, and what docs/adopting.md says of taking its group over.
package stock
