module github.com/oncemill/oncemill/bench

go 1.26.0

require (
	github.com/ThreeDotsLabs/watermill v1.5.3
	github.com/ThreeDotsLabs/watermill-nats/v2 v2.2.0
	github.com/ThreeDotsLabs/watermill-sql/v4 v4.1.5
	github.com/apache/cassandra-gocql-driver/v2 v2.0.0
	github.com/aws/aws-sdk-go-v2 v1.48.0
	github.com/aws/aws-sdk-go-v2/service/dynamodb v1.74.0
	github.com/aws/smithy-go v1.28.9
	github.com/jackc/pgx/v5 v5.12.0
	github.com/nats-io/nats-server/v2 v2.15.2
	github.com/nats-io/nats.go v1.55.0
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/dedupstore/cassandrastore v0.0.0
	github.com/oncemill/oncemill/dedupstore/dynamostore v0.0.0
	github.com/oncemill/oncemill/dedupstore/mysqlstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/natskv v0.0.0
	github.com/oncemill/oncemill/dedupstore/pgstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/redisstore v0.0.0
	github.com/oncemill/oncemill/dedupstore/sqlitestore v0.0.0
	github.com/oncemill/oncemill/internal/testserver/cassandratest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/kafkatest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/mysqltest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/natstest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/redistest v0.0.0
	github.com/oncemill/oncemill/outbox/mysqloutbox v0.0.0
	github.com/oncemill/oncemill/outbox/pgoutbox v0.0.0
	github.com/oncemill/oncemill/outbox/pgwal v0.0.0
	github.com/oncemill/oncemill/outbox/sqliteoutbox v0.0.0
	github.com/oncemill/oncemill/transport/franz v0.0.0
	github.com/oncemill/oncemill/transport/natsjs v0.0.0
	github.com/oncemill/oncemill/transport/oncewatermill v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/riverqueue/river v0.51.0
	github.com/riverqueue/river/riverdriver/riverpgxv5 v0.51.0
	github.com/twmb/franz-go v1.22.2
	github.com/twmb/franz-go/pkg/kadm v1.18.0
	modernc.org/sqlite v1.60.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	github.com/antithesishq/antithesis-sdk-go v0.8.0-default-no-op // indirect
	github.com/aws/aws-sdk-go-v2/internal/configsources v1.5.12 // indirect
	github.com/aws/aws-sdk-go-v2/internal/endpoints/v2 v2.8.12 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/accept-encoding v1.13.25 // indirect
	github.com/aws/aws-sdk-go-v2/service/internal/endpoint-discovery v1.13.12 // indirect
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/dustin/go-humanize v1.0.1 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/go-sql-driver/mysql v1.10.1 // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/gowebpki/jcs v1.0.2 // indirect
	github.com/jackc/pgio v1.0.0 // indirect
	github.com/jackc/pglogrepl v0.0.0-20250509230407-a9884f6bd75a // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.3 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/lib/pq v1.12.3 // indirect
	github.com/lithammer/shortuuid/v3 v3.0.7 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/oklog/ulid v1.3.1 // indirect
	github.com/pierrec/lz4/v4 v4.1.33 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/riverqueue/river/riverdriver v0.51.0 // indirect
	github.com/riverqueue/river/rivershared v0.51.0 // indirect
	github.com/riverqueue/river/rivertype v0.51.0 // indirect
	github.com/sony/gobreaker v1.0.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.2.0 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.15.0 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/otel v1.47.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	golang.org/x/time v0.16.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
	modernc.org/libc v1.77.1 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

replace (
	github.com/oncemill/oncemill => ..
	github.com/oncemill/oncemill/dedupstore/cassandrastore => ../dedupstore/cassandrastore
	github.com/oncemill/oncemill/dedupstore/dynamostore => ../dedupstore/dynamostore
	github.com/oncemill/oncemill/dedupstore/mysqlstore => ../dedupstore/mysqlstore
	github.com/oncemill/oncemill/dedupstore/natskv => ../dedupstore/natskv
	github.com/oncemill/oncemill/dedupstore/pgstore => ../dedupstore/pgstore
	github.com/oncemill/oncemill/dedupstore/redisstore => ../dedupstore/redisstore
	github.com/oncemill/oncemill/dedupstore/sqlitestore => ../dedupstore/sqlitestore
	github.com/oncemill/oncemill/internal/testserver/cassandratest => ../internal/testserver/cassandratest
	github.com/oncemill/oncemill/internal/testserver/kafkatest => ../internal/testserver/kafkatest
	github.com/oncemill/oncemill/internal/testserver/mysqltest => ../internal/testserver/mysqltest
	github.com/oncemill/oncemill/internal/testserver/natstest => ../internal/testserver/natstest
	github.com/oncemill/oncemill/internal/testserver/redistest => ../internal/testserver/redistest
	github.com/oncemill/oncemill/outbox/mysqloutbox => ../outbox/mysqloutbox
	github.com/oncemill/oncemill/outbox/pgoutbox => ../outbox/pgoutbox
	github.com/oncemill/oncemill/outbox/pgwal => ../outbox/pgwal
	github.com/oncemill/oncemill/outbox/sqliteoutbox => ../outbox/sqliteoutbox
	github.com/oncemill/oncemill/transport/franz => ../transport/franz
	github.com/oncemill/oncemill/transport/natsjs => ../transport/natsjs
	github.com/oncemill/oncemill/transport/oncewatermill => ../transport/oncewatermill
)
