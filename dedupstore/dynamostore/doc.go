// Package dynamostore keeps records in a table of Amazon DynamoDB, one item a key.
//
//	err := dynamostore.CreateTable(ctx, client, dynamostore.Table("oncemill")) // once
//	store, err := dynamostore.New(client, dynamostore.Config{})
//
// A claim puts an item that is not there, and every other write names the revision that it replaces, so DynamoDB
// refuses it if anybody wrote meanwhile. Then the store takes the item as it is, from the refusal or by a consistent
// read, and decides anew. Operations of a batch are in flight together, at most 128 of them: give the client's
// transport as many idle connections (MaxIdleConnsPerHost), else it dials for most.
//
// # What it costs
//
// A usual message takes two writes: its claim and its settlement. Each is one write unit while the item, some 400 bytes
// and the outcome, is below 1 KB. Messages that a run produced are a third write. A duplicate is a refused write, which
// costs as much as one. Each extension of a lease is a write. A process that did not make the claim itself lately reads
// before it settles.
//
// # Whose clock decides
//
// DynamoDB tells no time to its conditions, so the clocks of the hosts decide. Config.MaxSkew bounds how far they may
// be off. Each lease lives twice the bound longer than asked for, and so never ends early; after a crash its key is
// free that much later. A retry without delay does not wait for that. The store compares its host's clock with the
// Date of every reply, which counts seconds. A clock that is off by more than MaxSkew, a second and the round trip is
// found by the first reply, and no claim is granted on it until it is mended; one that is off by less than that, but
// more than MaxSkew, is found by some of the replies. A slow reply, which tells less, does not undo what a quicker one
// told in the 10 s before. If somebody has set the clock since the last reply, a claim reads first. Until a clock is
// found out, one that is ahead takes over claims that are still held, and one that is behind keeps crashed ones for
// longer. Extensions are not refused: a host whose clock falls behind while a handler runs ends its own lease early. A
// run whose claim was taken over loses it as always: it hears of it with its next extension, and cannot settle. Its
// effect may happen twice.
//
// # Records whose time has come
//
// DynamoDB removes an item up to some days after its TTL. Until then it counts as absent, but for its fence: the next
// one is greater. When it has gone, fences go on from the time.
//
// # Throttling
//
// The client sends throttled requests again, as its options say. Then the error goes to the caller. An engine waits
// on it as on every error of a store: no attempt is counted and no delivery is lost. So a provisioned table that is
// too small makes messages slow.
//
// # Limits
//
// An item has at most 400 KB. A larger record, with its result and the messages that its run produced, is refused with
// [dedupstore.ErrTooLarge]. In a global table two regions can claim a key at once, unless it has strong consistency:
// see [Store.Check].
//
// # The table as CloudFormation text
//
//	Oncemill:
//	  Type: AWS::DynamoDB::Table
//	  Properties:
//	    TableName: oncemill
//	    BillingMode: PAY_PER_REQUEST
//	    AttributeDefinitions: [{AttributeName: pk, AttributeType: S}]
//	    KeySchema: [{AttributeName: pk, KeyType: HASH}]
//	    TimeToLiveSpecification: {AttributeName: expires, Enabled: true}
//	    PointInTimeRecoverySpecification: {PointInTimeRecoveryEnabled: true}
//	    DeletionProtectionEnabled: true
//
// # Names
//
// The handlers of a group are remembered in an item, scopes:tenant:group, for 400 days after their last use. A process
// reads it when it starts, and writes it once an hour.
//
// # Rights
//
// A user needs dynamodb:GetItem and dynamodb:PutItem on the table. To list and change records also dynamodb:Scan and
// dynamodb:DeleteItem. Check needs dynamodb:DescribeTable, and asks for dynamodb:DescribeTimeToLive and
// dynamodb:DescribeContinuousBackups.
package dynamostore
