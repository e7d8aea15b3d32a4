// Package dynamotest runs a server that speaks DynamoDB's protocol for tests: dynalite, in memory, behind a proxy that
// loses and delays. It keeps the promises of package testserver.
package dynamotest
