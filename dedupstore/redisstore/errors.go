package redisstore

import (
	"errors"

	"github.com/oncemill/oncemill/dedupstore"
)

// unfit says why a server cannot keep the records. Until that is changed every claim is refused.
func unfit(addr, problem string, err error) error {
	return &dedupstore.SetupError{Package: "redisstore", Subject: "server " + addr, Problem: problem, Err: err}
}

var errReply = errors.New("the script's reply is malformed")
