package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/testserver/cassandratest"
)

func TestCheck_RefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	session := cassandratest.Shared(t).Session(t)
	for name, c := range map[string]struct {
		cql, want string
	}{
		"missing":       {"", "is missing: make it by Migrate"},
		"other columns": {"CREATE TABLE %s (id text PRIMARY KEY, rev bigint)", "has the columns"},
		"other key":     {"CREATE TABLE %s (id text, rev bigint, rec blob, PRIMARY KEY (id, rev))", "has the columns"},
		"other version": {
			"CREATE TABLE %s (id text PRIMARY KEY, rev bigint, rec blob) WITH comment = 'oncemill dedup 2'",
			"is of version 2, want 1",
		},
	} {
		s := storeOf(t, session, Config{Keyspace: keyspace(t), Table: tableName()})
		if c.cql != "" {
			if err := session.Query(fmt.Sprintf(c.cql, s.cfg.located())).ExecContext(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		refuses(t, name, s, c.want, name != "other version")
		plan, err := s.Plan(t.Context())
		if name == "missing" && (err != nil || plan.Found != 0 || plan.Wanted != version || plan.SQL != s.SQL()) ||
			name != "missing" && (err == nil || s.Migrate(t.Context()) == nil) {
			t.Errorf("%s: the plan is %+v, %v", name, plan, err)
		}
	}
	s := storeOf(t, session, Config{Keyspace: "nowhere"})
	refuses(t, "no keyspace", s, "so is its keyspace", true)
	if err := s.Migrate(t.Context()); err == nil {
		t.Error("a table was made in no keyspace")
	}
}

// refuses wants Check and, if it cannot work, a claim and a list to say what is wrong.
func refuses(t *testing.T, name string, s *Store, want string, all bool) {
	t.Helper()
	for what, do := range map[string]func() error{
		"Check": func() error { _, err := s.Check(t.Context()); return err },
		"Claim": func() error { _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); return err },
		"List":  func() error { _, err := s.List(t.Context(), dedupstore.Filter{}, ""); return err },
	} {
		var setup *dedupstore.SetupError
		if what != "Check" && (!all || name == "other key") {
			continue
		}
		if err := do(); !errors.As(err, &setup) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s of %s: %v, want %q", what, name, err, want)
		}
	}
}

// Each statement that is refused asks for what is wrong, and needs room for that.
func TestStore_ManyClaimsOfAMissingTableDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := storeOf(t, cassandratest.Shared(t).Session(t), Config{Keyspace: keyspace(t), Table: tableName()})
	var requests []dedupstore.Request
	for i := range 2 * maxInFlight {
		requests = append(requests, request(fmt.Sprint(i)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, result := range s.Claim(ctx, requests) {
		var setup *dedupstore.SetupError
		if !errors.As(result.Err, &setup) {
			t.Fatalf("got %v, want that the table is missing", result.Err)
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
	if r.Store != "cassandra" || !strings.HasPrefix(r.Version, "5.") ||
		!strings.Contains(r.Durability, "commitlog_sync is periodic") {
		t.Errorf("the report is %+v", r)
	}
	if len(r.Losses) != 1 || !strings.Contains(r.Losses[0], "one replica") || !slices.Equal(r.Warnings, r.Losses) {
		t.Errorf("it loses %q, and warns %q", r.Losses, r.Warnings)
	}
	if page, err := s.List(t.Context(), dedupstore.Filter{}, ""); err != nil || page.Looked > 0 {
		t.Errorf("Check wrote %+v, %v", page.Records, err)
	}
	plan, err := s.Plan(t.Context())
	if err != nil || plan.Found != version || plan.SQL != "" || s.Migrate(t.Context()) != nil {
		t.Errorf("the plan is %+v, %v", plan, err)
	}
}

func TestCheck_ReplicasThatAreNotThereAreNoQuorum(t *testing.T) {
	t.Parallel()
	session := cassandratest.Shared(t).Session(t)
	name := tableName()
	cql := "CREATE KEYSPACE " + name + " WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3}"
	if err := session.Query(cql).ExecContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := storeOf(t, session, Config{Keyspace: name})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuses(t, "other version", s, "has 3 replicas, and there are nodes for 1", false)
	var unavailable *gocql.RequestErrUnavailable
	if _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); !errors.As(err, &unavailable) {
		t.Errorf("a claim says %v", err)
	}
}

func TestReplicas_WhatTheyCanLose(t *testing.T) {
	t.Parallel()
	single, one, three := map[string]int{"a": 1}, map[string]int{"a": 3}, map[string]int{"a": 3, "b": 3, "c": 3}
	for name, c := range map[string]struct {
		replicas
		unfit, loses, warns string
	}{
		"three":                 {replicas{of: map[string]int{"a": 3}, nodes: one}, "", "", ""},
		"one":                   {replicas{of: single, nodes: one}, "", "one replica", ""},
		"two":                   {replicas{of: map[string]int{"a": 2}, nodes: one}, "", "", "two replicas"},
		"more than nodes":       {replicas{of: map[string]int{"a": 5}, nodes: one}, "", "", ""},
		"far more than nodes":   {replicas{of: map[string]int{"a": 6}, nodes: one}, "nodes for 3", "", ""},
		"elsewhere":             {replicas{of: map[string]int{"x": 3}, nodes: one}, "nodes for 0", "", ""},
		"several datacenters":   {replicas{of: three, nodes: three}, "", "", ""},
		"a datacenter away":     {replicas{of: three, nodes: map[string]int{"a": 3, "b": 3}}, "", "", ""},
		"simple":                {replicas{of: map[string]int{"": 3}, nodes: three}, "", "", "does not know"},
		"simple, in one":        {replicas{of: map[string]int{"": 3}, nodes: one}, "", "", ""},
		"local":                 {replicas{local: true, here: "a", of: one, nodes: one}, "", "", ""},
		"local, elsewhere":      {replicas{local: true, here: "b", of: one, nodes: one}, "no replicas in", "", ""},
		"local, one of several": {replicas{local: true, here: "a", of: three, nodes: one}, "", "claim in one", ""},
		"local, knows others":   {replicas{local: true, here: "a", of: one, nodes: one, knows: 3}, "", "Filter", ""},
		"local, knows its own":  {replicas{local: true, here: "a", of: one, nodes: three, knows: 1}, "", "", ""},
		"local, one replica":    {replicas{local: true, here: "a", of: single, nodes: one}, "", "one replica", ""},
	} {
		has := func(got []string, want string) bool {
			return want == "" && len(got) == 0 || len(got) == 1 && want != "" && strings.Contains(got[0], want)
		}
		if unfit := c.replicas.unfit(); unfit == "" != (c.unfit == "") || !strings.Contains(unfit, c.unfit) {
			t.Errorf("%s: unfit is %q, want %q", name, unfit, c.unfit)
		}
		if c.unfit == "" && (!has(c.losses("batch"), c.loses) || !has(c.replicas.warnings(), c.warns)) {
			t.Errorf("%s: %q, %q; want %q and %q", name, c.losses("batch"), c.replicas.warnings(), c.loses, c.warns)
		}
	}
	got := factors(map[string]string{"class": "NetworkTopologyStrategy", "a": "3/1", "b": "0"})
	if len(got) != 1 || got["a"] != 3 {
		t.Errorf("the factors are %v", got)
	}
	if l := (layout{durable: true, grace: hintWindow}); len(l.losses()) > 0 || len(l.warnings()) > 0 {
		t.Errorf("a usual layout: %q, %q", l.losses(), l.warnings())
	}
	if l := (layout{grace: 0}); len(l.losses()) != 1 || len(l.warnings()) != 1 {
		t.Errorf("a poor layout: %q, %q", l.losses(), l.warnings())
	}
}

func TestStore_SaysWhichRightIsMissing(t *testing.T) {
	t.Parallel()
	server := cassandratest.Shared(t)
	all := newStore(t)
	role := "clerk_" + tableName()
	for _, cql := range []string{
		"CREATE ROLE " + role + " WITH password = '" + role + "' AND login = true",
		"GRANT SELECT ON " + all.cfg.located() + " TO " + role,
	} {
		if err := all.session.Query(cql).ExecContext(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := storeOf(t, server.Session(t, func(c *gocql.ClusterConfig) {
		c.Authenticator = gocql.PasswordAuthenticator{Username: role, Password: role}
	}), all.cfg)
	var setup *dedupstore.SetupError
	for what, do := range map[string]func() error{
		"Check": func() error { _, err := s.Check(t.Context()); return err },
		"Claim": func() error { _, err := dedupstore.ClaimOne(t.Context(), s, request("1")); return err },
	} {
		if err := do(); !errors.As(err, &setup) || !strings.Contains(err.Error(), "a right") {
			t.Errorf("%s without MODIFY: %v", what, err)
		}
	}
	grant := all.session.Query("GRANT MODIFY ON " + all.cfg.located() + " TO " + role)
	if err := grant.ExecContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim(t, s, request("1"), dedupstore.AcquiredRun)
	r, err := s.Check(t.Context())
	if err != nil || !strings.Contains(r.Durability, "commitlog_sync is not known") {
		t.Errorf("the report is %+v, %v", r, err)
	}
}

func TestNew_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	session := new(gocql.Session)
	for _, c := range []Config{
		{Keyspace: "a-b"}, {Keyspace: `a"b`}, {Table: "a.b"}, {Table: strings.Repeat("t", 49)},
		{MaxSkew: -1}, {MaxSkew: time.Microsecond}, {MaxSkew: time.Hour},
	} {
		var invalid *dedupstore.InvalidError
		if _, err := New(session, c); !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := New(nil, Config{}); err == nil {
		t.Error("a store without a session was made")
	}
	for _, name := range []string{"a", "A_9", strings.Repeat("t", 48)} {
		if _, err := New(session, Config{Keyspace: name, Table: name}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}
