module github.com/oncemill/oncemill/e2e

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/IBM/sarama v1.50.3
	github.com/ThreeDotsLabs/watermill v1.5.3
	github.com/ThreeDotsLabs/watermill-amqp/v3 v3.0.2
	github.com/ThreeDotsLabs/watermill-kafka/v3 v3.1.4
	github.com/ThreeDotsLabs/watermill-nats/v2 v2.2.0
	github.com/apache/cassandra-gocql-driver/v2 v2.0.0
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
	github.com/compose-spec/compose-go/v2 v2.16.2
	github.com/go-sql-driver/mysql v1.10.1
	github.com/google/go-cmp v0.7.0
	github.com/jackc/pgx/v5 v5.12.0
	github.com/nats-io/nats-server/v2 v2.15.2
	github.com/nats-io/nats.go v1.55.0
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/console v0.0.0
	github.com/oncemill/oncemill/dedupstore/cassandrastore v0.0.0
	github.com/oncemill/oncemill/dedupstore/mysqlstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/natskv v0.0.0
	github.com/oncemill/oncemill/dedupstore/pgstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/redisstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/sqlitestore v0.0.0
	github.com/oncemill/oncemill/internal/testserver/cassandratest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/kafkatest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/mysqltest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/natstest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/postgrestest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/redistest v0.0.0
	github.com/oncemill/oncemill/outbox/mysqloutbox v0.0.0
	github.com/oncemill/oncemill/outbox/pgoutbox v0.0.0
	github.com/oncemill/oncemill/outbox/sqliteoutbox v0.0.0
	github.com/oncemill/oncemill/producer/idempotencyconnect v0.0.0
	github.com/oncemill/oncemill/producer/idempotencygrpc v0.0.0
	github.com/oncemill/oncemill/transport/franz v0.0.0
	github.com/oncemill/oncemill/transport/natsjs v0.0.0
	github.com/oncemill/oncemill/transport/oncewatermill v0.0.0
	github.com/prometheus/client_golang v1.24.1
	github.com/prometheus/prometheus v0.315.0
	github.com/rabbitmq/amqp091-go v1.10.0
	github.com/redis/go-redis/extra/redisotel/v9 v9.23.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/twmb/franz-go v1.22.2
	github.com/twmb/franz-go/pkg/kadm v1.18.0
	github.com/twmb/franz-go/pkg/kfake v0.0.0-20260918054303-01f206a7e32c
	github.com/twmb/franz-go/pkg/kmsg v1.15.0
	go.opentelemetry.io/otel v1.47.0
	go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp v1.47.0
	go.opentelemetry.io/otel/exporters/prometheus v0.69.0
	go.opentelemetry.io/otel/metric v1.47.0
	go.opentelemetry.io/otel/sdk v1.47.0
	go.opentelemetry.io/otel/sdk/metric v1.47.0
	go.opentelemetry.io/otel/trace v1.47.0
	go.opentelemetry.io/proto/otlp v1.11.0
	go.uber.org/goleak v1.3.0
	go.yaml.in/yaml/v3 v3.0.5
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	modernc.org/sqlite v1.60.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/antithesishq/antithesis-sdk-go v0.8.0-default-no-op // indirect
	github.com/aws/aws-sdk-go-v2 v1.48.0
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.5.12 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.8.12 // indirect
	github.com/aws/aws-sdk-go-v2/service/dynamodb v1.74.0
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.25 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/endpoint-discovery v1.13.12 // indirect
	github.com/aws/smithy-go v1.28.9 // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cenkalti/backoff/v3 v3.2.2 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/davecgh/go-spew v1.1.2-0.20180830191138-d8f796af33cc // indirect
	github.com/dennwc/varint v1.0.0 // indirect
	github.com/distribution/reference v0.6.0 // indirect
	github.com/dnwe/otelsarama v0.0.0-20240308230250-9388d9d40bc0 // indirect
	github.com/docker/go-connections v0.7.0 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/eapache/go-resiliency v1.7.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-viper/mapstructure/v2 v2.5.0 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/gowebpki/jcs v1.0.2 // indirect
	github.com/grafana/regexp v0.0.0-20250905093917-f7b3be9d1853 // indirect
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.30.0 // indirect
	github.com/hashicorp/errwrap v1.1.0 // indirect
	github.com/hashicorp/go-multierror v1.1.1 // indirect
	github.com/hashicorp/go-uuid v1.0.3 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/jcmturner/aescts/v2 v2.0.0 // indirect
	github.com/jcmturner/dnsutils/v2 v2.0.0 // indirect
	github.com/jcmturner/gofork v1.7.6 // indirect
	github.com/jcmturner/gokrb5/v8 v8.4.4 // indirect
	github.com/jcmturner/rpc/v2 v2.0.3 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/mattn/go-shellwords v1.0.12 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/ncruces/go-strftime v1.0.0 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/oncemill/oncemill/dedupstore/dynamostore v0.0.0
	github.com/oncemill/oncemill/internal/rpc v0.0.0 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/otlptranslator v1.0.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/rcrowley/go-metrics v0.0.0-20250401214520-65e299d6c5c9 // indirect
	github.com/redis/go-redis/extra/rediscmd/v9 v9.23.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.2 // indirect
	github.com/sirupsen/logrus v1.10.1 // indirect
	github.com/sony/gobreaker v1.0.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	github.com/xhit/go-str2duration/v2 v2.1.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel/exporters/otlp/otlptrace v1.47.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v4 v4.0.0-rc.6 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260928230214-8a89bd6388cc // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260928230214-8a89bd6388cc // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	modernc.org/libc v1.77.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

replace (
	github.com/oncemill/oncemill => ..
	github.com/oncemill/oncemill/console => ../console
	github.com/oncemill/oncemill/dedupstore/cassandrastore => ../dedupstore/cassandrastore
	github.com/oncemill/oncemill/dedupstore/mysqlstore => ../dedupstore/mysqlstore
	github.com/oncemill/oncemill/dedupstore/natskv => ../dedupstore/natskv
	github.com/oncemill/oncemill/dedupstore/pgstore => ../dedupstore/pgstore
	github.com/oncemill/oncemill/dedupstore/redisstore => ../dedupstore/redisstore
	github.com/oncemill/oncemill/dedupstore/sqlitestore => ../dedupstore/sqlitestore
	github.com/oncemill/oncemill/internal/rpc => ../internal/rpc
	github.com/oncemill/oncemill/internal/testserver/cassandratest => ../internal/testserver/cassandratest
	github.com/oncemill/oncemill/internal/testserver/kafkatest => ../internal/testserver/kafkatest
	github.com/oncemill/oncemill/internal/testserver/mysqltest => ../internal/testserver/mysqltest
	github.com/oncemill/oncemill/internal/testserver/natstest => ../internal/testserver/natstest
	github.com/oncemill/oncemill/internal/testserver/postgrestest => ../internal/testserver/postgrestest
	github.com/oncemill/oncemill/internal/testserver/redistest => ../internal/testserver/redistest
	github.com/oncemill/oncemill/outbox/mysqloutbox => ../outbox/mysqloutbox
	github.com/oncemill/oncemill/outbox/pgoutbox => ../outbox/pgoutbox
	github.com/oncemill/oncemill/outbox/sqliteoutbox => ../outbox/sqliteoutbox
	github.com/oncemill/oncemill/producer/idempotencyconnect => ../producer/idempotencyconnect
	github.com/oncemill/oncemill/producer/idempotencygrpc => ../producer/idempotencygrpc
	github.com/oncemill/oncemill/transport/franz => ../transport/franz
	github.com/oncemill/oncemill/transport/natsjs => ../transport/natsjs
	github.com/oncemill/oncemill/transport/oncewatermill => ../transport/oncewatermill
)

replace github.com/oncemill/oncemill/dedupstore/dynamostore => ../dedupstore/dynamostore
