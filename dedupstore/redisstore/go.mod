module github.com/oncemill/oncemill/dedupstore/redisstore

go 1.26.0

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/google/go-cmp v0.7.0
	github.com/oncemill/oncemill v0.0.0
	github.com/oncemill/oncemill/internal/lineartest v0.0.0
	github.com/oncemill/oncemill/internal/testserver/redistest v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	go.uber.org/goleak v1.3.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/anishathalye/porcupine v1.3.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace (
	github.com/oncemill/oncemill => ../..
	github.com/oncemill/oncemill/internal/lineartest => ../../internal/lineartest
	github.com/oncemill/oncemill/internal/testserver/redistest => ../../internal/testserver/redistest
)
