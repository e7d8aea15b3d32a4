package stocknats_test

import "github.com/ThreeDotsLabs/watermill"

// noLog discards what Watermill logs.
type noLog struct{ watermill.NopLogger }
