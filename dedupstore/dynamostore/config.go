package dynamostore

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/oncemill/oncemill/dedupstore"
)

// Config configures a [Store]. The zero value is ready to use.
type Config struct {
	// Table is the table's name or its ARN. Empty: "oncemill".
	Table string

	// MaxSkew is how far the clocks of hosts that use the table may be from the true time, at least a millisecond and
	// at most a minute. All of them need the same value. Leases live twice as long longer than asked for, so that no
	// clock within the bound ends one early. Claims are refused while the endpoint's replies show that this host's
	// clock is out of it. Zero: 500 ms.
	MaxSkew time.Duration
}

func (c Config) withDefaults() Config {
	c.Table, c.MaxSkew = cmp.Or(c.Table, "oncemill"), cmp.Or(c.MaxSkew, 500*time.Millisecond)
	return c
}

func (c Config) validate(client *dynamodb.Client) error {
	field, problem := "", ""
	switch {
	case client == nil:
		field, problem = "client", "is nil"
	case c.Table != "" && !tableName(c.Table):
		field, problem = "Config.Table", fmt.Sprintf("is %q, want 3 to 255 letters, digits, \"-\", \"_\" and \".\", "+
			"or an ARN", c.Table)
	case c.MaxSkew != 0 && (c.MaxSkew < time.Millisecond || c.MaxSkew > time.Minute):
		field, problem = "Config.MaxSkew", fmt.Sprintf("is %v, want 1ms to 1m", c.MaxSkew)
	default:
		return nil
	}
	return &dedupstore.InvalidError{Package: "dynamostore", Field: field, Problem: problem}
}

func tableName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	_, name, arn := strings.Cut(s, ":table/")
	if arn = arn && strings.HasPrefix(s, "arn:"); !arn {
		name = s
	}
	return len(name) >= 3 && len(name) <= 255 && strings.Trim(name, allowed) == ""
}
