module github.com/oncemill/oncemill/internal/testserver/kafkatest

go 1.26.0

require (
	github.com/oncemill/oncemill v0.0.0
	github.com/twmb/franz-go v1.22.2
	github.com/twmb/franz-go/pkg/kadm v1.18.0
)

require (
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.15.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
)

replace github.com/oncemill/oncemill => ../../..
