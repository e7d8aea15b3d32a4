module github.com/oncemill/oncemill/internal/lineartest

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/oncemill/oncemill v0.0.0
)

require github.com/google/uuid v1.6.0 // indirect

replace github.com/oncemill/oncemill => ../..
