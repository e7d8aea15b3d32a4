package dynamostore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/testserver/dynamotest"
)

func TestCheck_RefusesTablesThatDoNotFit(t *testing.T) {
	t.Parallel()
	client := clientOf(t, dynamotest.Shared(t))
	for name, c := range map[string]struct {
		change func(*dynamodb.CreateTableInput)
		want   string
	}{
		"missing": {nil, "is missing"},
		"other-key": {func(in *dynamodb.CreateTableInput) {
			in.AttributeDefinitions[0].AttributeName, in.KeySchema[0].AttributeName = aws.String("id"), aws.String("id")
		}, "key"},
		"number": {func(in *dynamodb.CreateTableInput) {
			in.AttributeDefinitions[0].AttributeType = types.ScalarAttributeTypeN
		}, "key"},
		"sort-key": {func(in *dynamodb.CreateTableInput) {
			in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{
				AttributeName: aws.String("at"), AttributeType: types.ScalarAttributeTypeN})
			in.KeySchema = append(in.KeySchema, types.KeySchemaElement{
				AttributeName: aws.String("at"), KeyType: types.KeyTypeRange})
		}, "key"},
	} {
		table := name + "-" + ids.New()
		if c.change != nil {
			in := Table(table)
			in.DeletionProtectionEnabled = nil
			c.change(in)
			if err := CreateTable(t.Context(), client, in); err != nil {
				t.Fatal(err)
			}
		}
		s := storeOf(t, client, table)
		for what, do := range map[string]func() error{
			"Check": func() error { _, err := s.Check(t.Context()); return err },
			"Claim": func() error { _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); return err },
			"List":  func() error { _, err := s.List(t.Context(), dedupstore.Filter{}, ""); return err },
		} {
			if what == "List" && c.change != nil {
				continue // there is nothing in it
			}
			var setup *dedupstore.SetupError
			if err := do(); !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s of %s: %v, want %q", what, name, err, c.want)
			}
		}
	}
}

func TestCheck_SaysWhatTheTableIs(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Store != "dynamodb" || r.Version != "on-demand" || r.Durability == "" || len(r.Losses) != 1 {
		t.Errorf("the report is %+v", r)
	}
	if page, err := s.List(t.Context(), dedupstore.Filter{}, ""); err != nil || len(page.Records) > 0 {
		t.Errorf("Check wrote %+v, %v", page.Records, err)
	}
	// dynalite has no TTLs, and knows no backups.
	for _, want := range []string{"no TTL on expires", "recovery is not known"} {
		if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("%q does not warn of %q", r.Warnings, want)
		}
	}
}

func TestCheck_Losses(t *testing.T) {
	t.Parallel()
	protected := aws.Bool(true)
	replicas := []types.ReplicaDescription{{RegionName: aws.String("eu-west-1")}}
	for name, c := range map[string]struct {
		table types.TableDescription
		want  string
	}{
		"safe":        {types.TableDescription{DeletionProtectionEnabled: protected}, ""},
		"unprotected": {types.TableDescription{}, "deleted by one call"},
		"global": {types.TableDescription{DeletionProtectionEnabled: protected, Replicas: replicas},
			"two regions that claim a key at once"},
		"global, consistent": {types.TableDescription{DeletionProtectionEnabled: protected, Replicas: replicas,
			MultiRegionConsistency: types.MultiRegionConsistencyStrong}, ""},
	} {
		got := losses(&c.table)
		if (len(got) == 0) != (c.want == "") || len(got) > 1 || len(got) == 1 && !strings.Contains(got[0], c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	slow := types.TableDescription{ProvisionedThroughput: &types.ProvisionedThroughputDescription{
		WriteCapacityUnits: aws.Int64(10)}}
	if got := throughput(&slow); len(got) != 1 || !strings.Contains(got[0], "enough for 5 messages") {
		t.Errorf("a slow table: %q", got)
	}
}

func TestStore_WorksOnAProvisionedTable(t *testing.T) {
	t.Parallel()
	client, in := clientOf(t, dynamotest.Shared(t)), Table("provisioned-"+ids.New())
	in.DeletionProtectionEnabled, in.BillingMode = nil, types.BillingModeProvisioned
	in.ProvisionedThroughput = &types.ProvisionedThroughput{
		ReadCapacityUnits: aws.Int64(5), WriteCapacityUnits: aws.Int64(8),
	}
	for range 2 { // the second changes nothing
		if err := CreateTable(t.Context(), client, in); err != nil {
			t.Fatal(err)
		}
	}
	s := storeOf(t, client, *in.TableName)
	settle(t, s, claim(t, s, request("1"), dedupstore.AcquiredRun).Claim, succeeded(""))
	r, err := s.Check(t.Context())
	if err != nil || r.Version != "provisioned" ||
		!slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, "enough for 4 messages") }) {
		t.Errorf("the report is %+v, %v", r, err)
	}
}

func TestStore_SaysWhichRightIsMissing(t *testing.T) {
	t.Parallel()
	s, proxy := throughProxy(t)
	claim(t, s, request("0"), dedupstore.AcquiredRun)
	for _, lacks := range []string{"GetItem", "PutItem", "DescribeTable"} {
		proxy.Inject(func(operation string) dynamotest.Fault {
			if operation == lacks {
				return dynamotest.Fault{Refuse: "AccessDeniedException"}
			}
			return dynamotest.Fault{}
		})
		var setup *dedupstore.SetupError
		if _, err := s.Check(t.Context()); !errors.As(err, &setup) || !strings.Contains(err.Error(), "a right") {
			t.Errorf("without %s Check says %v", lacks, err)
		}
		_, err := dedupstore.ClaimOne(t.Context(), s, request("1 "+lacks))
		if lacks == "PutItem" && !errors.As(err, &setup) || lacks != "PutItem" && err != nil {
			t.Errorf("without %s a claim says %v", lacks, err)
		}
	}
	for _, optional := range []string{"DescribeTimeToLive", "DescribeContinuousBackups"} {
		proxy.Inject(func(operation string) dynamotest.Fault {
			if operation == optional {
				return dynamotest.Fault{Refuse: "AccessDeniedException"}
			}
			return dynamotest.Fault{}
		})
		if _, err := s.Check(t.Context()); err != nil {
			t.Errorf("without %s Check says %v", optional, err)
		}
	}
}

func TestNew_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	client := dynamodb.New(dynamodb.Options{Region: "eu-central-1"})
	for _, c := range []Config{
		{Table: "ab"}, {Table: "a/b"}, {Table: "table "}, {Table: strings.Repeat("t", 256)}, {Table: "arn:aws:sqs:q"},
		{MaxSkew: -1}, {MaxSkew: time.Microsecond}, {MaxSkew: time.Hour},
	} {
		var invalid *dedupstore.InvalidError
		if _, err := New(client, c); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := New(nil, Config{}); err == nil {
		t.Error("a store without a client was made")
	}
	for _, name := range []string{"abc", "a.b-c_9", "arn:aws:dynamodb:eu-central-1:123456789012:table/abc"} {
		if _, err := New(client, Config{Table: name}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
