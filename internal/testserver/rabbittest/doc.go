// Package rabbittest runs RabbitMQ for tests, as the rules of package testserver say.
package rabbittest
