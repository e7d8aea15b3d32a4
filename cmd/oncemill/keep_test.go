package main

import (
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/oncemill/oncemill/internal/testserver/kafkatest"
	_ "github.com/oncemill/oncemill/internal/testserver/natstest"
	_ "github.com/oncemill/oncemill/transport/franz"
	_ "github.com/oncemill/oncemill/transport/natsjs"
	_ "github.com/twmb/franz-go/pkg/kadm"
	_ "github.com/twmb/franz-go/pkg/kfake"
	_ "github.com/twmb/franz-go/pkg/kgo"
)
