package dynamostore

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/oncemill/oncemill/dedupstore"
)

// setup is an error of the table.
func (s *Store) setup(problem string, err error) error {
	return &dedupstore.SetupError{
		Package: "dynamostore", Subject: fmt.Sprintf("table %q", s.table), Problem: problem, Err: err,
	}
}

// failed makes an error of one of the client. A condition that failed stays what it is.
func (s *Store) failed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var condition *types.ConditionalCheckFailedException
	var api smithy.APIError
	switch {
	case errors.As(err, &condition):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("dynamostore: table %q: no answer within %v: %w", s.table, s.within, err)
	case !errors.As(err, &api):
		return fmt.Errorf("dynamostore: table %q: %w", s.table, err)
	}
	switch api.ErrorCode() {
	case "ResourceNotFoundException":
		return s.setup("is missing, or being made: call CreateTable, or name another one or another region", err)
	case "ValidationException":
		return s.setup("does not take the store's requests: its key has to be "+keyAttribute+", a string, alone; use "+
			"a table that CreateTable made", err)
	case "AccessDeniedException":
		return s.setup("refuses the client's user a right: allow what the package doc of dynamostore lists", err)
	case "UnrecognizedClientException", "MissingAuthenticationTokenException":
		return s.setup("does not know the client's credentials", err)
	}
	return fmt.Errorf("dynamostore: table %q: %w", s.table, err)
}
