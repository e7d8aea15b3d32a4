// Package shop is what the examples for NATS and Kafka have in common and a program of yours does not need: orders and
// their bad luck, a bank that loses its nerve, books that must balance, flags. What is to be learned stands in the
// examples themselves.
package shop
