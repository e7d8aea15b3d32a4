package dynamostore

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// Check implements [dedupstore.Checker]. It returns a [*dedupstore.SetupError] for a table that is missing, has
// another key or is not active, for a user who may not read or write it, and for a clock of this host that is out of
// MaxSkew. It writes nothing. The rights to describe TTL and backups may be missing: then it warns that they are not
// known.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	out, err := do(ctx, s, s.client.DescribeTable, &dynamodb.DescribeTableInput{TableName: &s.table})
	if err != nil {
		return dedupstore.Report{}, err
	}
	t := out.Table
	if problem := unfit(t); problem != "" {
		return dedupstore.Report{}, s.setup(problem, nil)
	}
	probe := dedupstore.Key{Tenant: "oncemill", Group: "check", Handler: "check", ID: "check"}
	if _, err := s.read(ctx, probe); err != nil {
		return dedupstore.Report{}, err
	}
	// Nothing has this number.
	nothing := &dedupstore.Stored{State: dedupstore.Finished, Fence: 1}
	if _, _, err := s.write(ctx, probe, nothing, -1, recordstore.Time{}); !errors.Is(err, recordstore.ErrConflict) {
		return dedupstore.Report{}, err
	}
	if err := s.clock.wrong(); err != nil {
		return dedupstore.Report{}, err
	}
	losses := losses(t)
	report := dedupstore.Report{
		Store: "dynamodb", Version: billing(t), Losses: losses,
		Durability: "in three zones of the region; every confirmed write survives the loss of one",
	}
	report.Warnings = append(append(s.warnings(ctx), throughput(t)...), losses...)
	return report, nil
}

// unfit says why a table cannot serve.
func unfit(t *types.TableDescription) string {
	key := len(t.KeySchema) == 1 && aws.ToString(t.KeySchema[0].AttributeName) == keyAttribute
	for _, a := range t.AttributeDefinitions {
		key = key && (aws.ToString(a.AttributeName) != keyAttribute || a.AttributeType == types.ScalarAttributeTypeS)
	}
	switch {
	case !key:
		return "has another key than " + keyAttribute + ", a string, alone: use a table that CreateTable made"
	case t.TableStatus != types.TableStatusActive && t.TableStatus != types.TableStatusUpdating:
		return fmt.Sprintf("is %s: wait, or name another one", t.TableStatus)
	}
	return ""
}

func provisioned(t *types.TableDescription) bool {
	return t.BillingModeSummary == nil || t.BillingModeSummary.BillingMode != types.BillingModePayPerRequest
}

func billing(t *types.TableDescription) string {
	if provisioned(t) {
		return "provisioned"
	}
	return "on-demand"
}

// throughput says what a provisioned table can bear.
func throughput(t *types.TableDescription) []string {
	if !provisioned(t) || t.ProvisionedThroughput == nil {
		return nil
	}
	units := aws.ToInt64(t.ProvisionedThroughput.WriteCapacityUnits)
	return []string{fmt.Sprintf("the table has %d provisioned write units a second, enough for %d messages: "+
		"beyond that requests are throttled, and messages wait; let it scale by itself, or make it "+
		"on-demand", units, units/2)}
}

// losses tell how records can be lost.
func losses(t *types.TableDescription) (losses []string) {
	if len(t.Replicas) > 0 && t.MultiRegionConsistency != types.MultiRegionConsistencyStrong {
		losses = append(losses, "the table is a global one whose regions follow each other later: two regions "+
			"that claim a key at once both run it; claim in one region only, or use strong consistency")
	}
	if !aws.ToBool(t.DeletionProtectionEnabled) {
		losses = append(losses, "the table can be deleted by one call, with all its records: set "+
			"DeletionProtectionEnabled")
	}
	return losses
}

// warnings are what works but should be changed, and what cannot be known.
func (s *Store) warnings(ctx context.Context) (warnings []string) {
	on, err := expires(ctx, s.client, &s.table)
	switch {
	case err != nil:
		warnings = append(warnings, fmt.Sprintf("whether the table removes records whose time has come is not known: "+
			"%v", s.failed(ctx, err)))
	case !on:
		warnings = append(warnings, "the table has no TTL on "+expiresAttribute+": records stay for ever, and are "+
			"paid for; call CreateTable, or set it")
	}
	backups, err := s.client.DescribeContinuousBackups(ctx,
		&dynamodb.DescribeContinuousBackupsInput{TableName: &s.table})
	if err != nil {
		return append(warnings, fmt.Sprintf("whether the table has point-in-time recovery is not known: %v",
			s.failed(ctx, err)))
	}
	if b := backups.ContinuousBackupsDescription; b == nil || b.PointInTimeRecoveryDescription == nil ||
		b.PointInTimeRecoveryDescription.PointInTimeRecoveryStatus != types.PointInTimeRecoveryStatusEnabled {
		warnings = append(warnings, "the table has no point-in-time recovery: records that are deleted by mistake do "+
			"not come back; with it, what was claimed after the time of the recovery runs again")
	}
	return warnings
}
