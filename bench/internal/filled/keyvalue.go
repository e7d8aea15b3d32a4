package filled

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/bench/internal/servers"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/dedupstore/cassandrastore"
	"github.com/oncemill/oncemill/dedupstore/dynamostore"
	"github.com/oncemill/oncemill/dedupstore/natskv"
	"github.com/oncemill/oncemill/dedupstore/redisstore"
)

// A half makes one store of a pair, and says how its records are read and written again under another key.
type half struct {
	store dedupstore.Inspector
	read  func(ctx context.Context, key dedupstore.Key) (record any, err error)
	write func(ctx context.Context, keys []dedupstore.Key, records []any) error

	// again says that all are written twice, so that the server comes to rest.
	again bool
}

// pair makes two stores, of the names mill_empty and mill_full.
func pair(
	ctx context.Context, b *kit.Bench, p *kit.Pair[*Store], name string, atOnce int,
	open func(ctx context.Context, name string) (half, error),
) (*kit.Pair[*Store], error) {
	seeded := func(of string) (s *Store, h half, err error) {
		if h, err = open(ctx, of); err != nil {
			return nil, h, err
		}
		s = &Store{Inspector: h.store}
		return s, h, s.seed(ctx)
	}
	var err1, err2 error
	var full half
	p.Empty, _, err1 = seeded("mill_empty")
	p.Full, full, err2 = seeded("mill_full")
	err := errors.Join(err1, err2)
	if err == nil {
		p.Full.copies = copies(b)
		err = full.multiply(ctx, b, name, atOnce)
		if err == nil && full.again {
			err = full.multiply(ctx, b, name, atOnce)
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Clean())
	}
	return p, nil
}

func (h half) multiply(ctx context.Context, b *kit.Bench, name string, atOnce int) error {
	records := make([]any, Seeds)
	for i := range records {
		var err error
		if records[i], err = h.read(ctx, keyOf(seedID(i))); err != nil {
			return fmt.Errorf("seed %d: %w", i, err)
		}
	}
	return fill(ctx, b, name, atOnce, copies(b), func(ctx context.Context, from, to int) error {
		keys := make([]dedupstore.Key, Seeds)
		for n := from; n <= to; n++ {
			for i := range keys {
				keys[i] = keyOf(copyID(seedID(i), n))
			}
			if err := h.write(ctx, keys, records); err != nil {
				return err
			}
		}
		return nil
	})
}

// openRedis has the stores in two databases of a server.
func openRedis(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	p := &kit.Pair[*Store]{}
	server, err := kit.StartRedis()
	if err != nil {
		return nil, err
	}
	p.Cleanup(server.Stop)
	databases := map[string]int{"mill_empty": 0, "mill_full": 1}
	return pair(ctx, b, p, "redis", 2, func(_ context.Context, name string) (half, error) {
		rdb := redis.NewClient(&redis.Options{
			Addr: server.Addr, DB: databases[name], PoolSize: Connections, ContextTimeoutEnabled: true,
		})
		p.Cleanup(rdb.Close)
		store, err := redisstore.New(rdb, redisstore.Config{})
		if err != nil {
			return half{}, err
		}
		p.Cleanup(kit.Quiet(store.Close))
		type record struct {
			value string
			ttl   time.Duration
		}
		in := func(key dedupstore.Key) string { return "oncemill:" + key.String() }
		return half{
			store: store,
			again: true, // each command moves a part of a hash table that has been doubled
			read: func(ctx context.Context, key dedupstore.Key) (any, error) {
				value, err1 := rdb.Get(ctx, in(key)).Result()
				ttl, err2 := rdb.PTTL(ctx, in(key)).Result()
				return record{value, ttl}, errors.Join(err1, err2)
			},
			write: func(ctx context.Context, keys []dedupstore.Key, records []any) error {
				pipe := rdb.Pipeline()
				for i, key := range keys {
					r := records[i].(record)
					pipe.Set(ctx, in(key), r.value, r.ttl)
				}
				_, err := pipe.Exec(ctx)
				return err
			},
		}, nil
	})
}

// openNATS has the stores in two buckets.
func openNATS(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	p := &kit.Pair[*Store]{}
	server, err := kit.StartNATS()
	if err != nil {
		return nil, err
	}
	p.Cleanup(server.Stop)
	nc, err := nats.Connect(server.URL)
	if err != nil {
		return nil, errors.Join(err, p.Clean())
	}
	p.Cleanup(kit.Quiet(nc.Close))
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(8*Seeds))
	if err != nil {
		return nil, errors.Join(err, p.Clean())
	}
	return pair(ctx, b, p, "natskv", 4, func(ctx context.Context, name string) (half, error) {
		stream, err := kit.FreshStream(ctx, js, natskv.Bucket(name, 1))
		if err != nil {
			return half{}, err
		}
		store, err := natskv.New(js, natskv.Config{Bucket: name})
		subject := func(key dedupstore.Key) string {
			return fmt.Sprintf("$KV.%s.%s.%s.%s.%s", name, key.Tenant, key.Group, key.Handler, key.ID)
		}
		return half{
			store: store,
			read: func(ctx context.Context, key dedupstore.Key) (any, error) {
				return stream.GetLastMsgForSubject(ctx, subject(key))
			},
			write: func(ctx context.Context, keys []dedupstore.Key, records []any) error {
				sent := make([]jetstream.PubAckFuture, len(keys))
				for i, key := range keys {
					r := records[i].(*jetstream.RawStreamMsg)
					m := &nats.Msg{Subject: subject(key), Data: r.Data, Header: nats.Header{
						jetstream.MsgTTLHeader: r.Header[jetstream.MsgTTLHeader],
					}}
					if sent[i], err = js.PublishMsgAsync(m); err != nil {
						return err
					}
				}
				for _, s := range sent {
					select {
					case <-s.Ok():
					case err := <-s.Err():
						return err
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				return nil
			},
		}, err
	})
}

// openDynamoDB has the stores in two tables of dynalite.
func openDynamoDB(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	p := &kit.Pair[*Store]{}
	client, giveBack, err := servers.StartDynamoDB(Connections)
	if err != nil {
		return nil, err
	}
	p.Cleanup(giveBack)
	const attribute = "pk"
	nameOf := func(key dedupstore.Key) types.AttributeValue {
		return &types.AttributeValueMemberS{Value: key.String()}
	}
	return pair(ctx, b, p, "dynamodb", 4, func(ctx context.Context, name string) (half, error) {
		in := dynamostore.Table(name)
		in.DeletionProtectionEnabled = nil
		if err := dynamostore.CreateTable(ctx, client, in); err != nil {
			return half{}, err
		}
		store, err := dynamostore.New(client, dynamostore.Config{Table: name})
		return half{
			store: store,
			read: func(ctx context.Context, key dedupstore.Key) (any, error) {
				out, err := client.GetItem(ctx, &dynamodb.GetItemInput{
					TableName: &name, Key: map[string]types.AttributeValue{attribute: nameOf(key)},
				})
				if err != nil {
					return nil, err
				}
				return out.Item, nil
			},
			write: func(ctx context.Context, keys []dedupstore.Key, records []any) error {
				var writes []types.WriteRequest
				for i, key := range keys {
					item := map[string]types.AttributeValue{}
					for name, value := range records[i].(map[string]types.AttributeValue) {
						item[name] = value
					}
					item[attribute] = nameOf(key)
					writes = append(writes, types.WriteRequest{PutRequest: &types.PutRequest{Item: item}})
				}
				const most = 25 // of DynamoDB
				for some := range slices.Chunk(writes, most) {
					_, err := client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{
						RequestItems: map[string][]types.WriteRequest{name: some},
					})
					if err != nil {
						return err
					}
				}
				return nil
			},
		}, err
	})
}

// openCassandra has the stores in two tables of a node.
func openCassandra(ctx context.Context, b *kit.Bench) (*kit.Pair[*Store], error) {
	p := &kit.Pair[*Store]{}
	session, keyspace, giveBack, err := servers.StartCassandra()
	if err != nil {
		return nil, err
	}
	p.Cleanup(giveBack)
	return pair(ctx, b, p, "cassandra", 16, func(ctx context.Context, name string) (half, error) {
		store, err := cassandrastore.New(session, cassandrastore.Config{Keyspace: keyspace, Table: name})
		if err != nil {
			return half{}, err
		}
		type record struct {
			rev int64
			rec []byte
		}
		table := keyspace + "." + name
		return half{
			store: store,
			read: func(ctx context.Context, key dedupstore.Key) (any, error) {
				var r record
				err := session.Query("SELECT rev, rec FROM "+table+" WHERE id = ?", key.String()).
					Consistency(gocql.Serial).ScanContext(ctx, &r.rev, &r.rec)
				return r, err
			},
			write: func(ctx context.Context, keys []dedupstore.Key, records []any) error {
				insert := "INSERT INTO " + table + " (id, rev, rec) VALUES (?, ?, ?) USING TTL 86400"
				load := kit.Load{Workers: 8, Messages: int64(len(keys))}
				_, _, err := load.Run(ctx, func(ctx context.Context, i int64) (time.Duration, error) {
					r := records[i].(record)
					return 0, session.Query(insert, keys[i].String(), r.rev, r.rec).ExecContext(ctx)
				})
				return err
			},
		}, store.Migrate(ctx)
	})
}
