package cassandrastore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/recordstore"
)

// Check implements [dedupstore.Checker]. It returns a [*dedupstore.SetupError] for a keyspace or a table that is
// missing or does not fit, for a keyspace with too few nodes for a quorum, for a user who may not read or write, and
// for a clock of this host that is out of MaxSkew. It writes nothing. Users who may not read system_views get a
// warning that names what Check could not see.
func (s *Store) Check(ctx context.Context) (dedupstore.Report, error) {
	l, err := s.look(ctx)
	if err != nil {
		return dedupstore.Report{}, err
	}
	if problem := l.unfit(); problem != "" {
		return dedupstore.Report{}, s.setup(problem, nil)
	}
	r := replicas{local: s.cfg.Local, of: factors(l.replication)}
	release, err := s.nodes(ctx, &r)
	if err != nil {
		return dedupstore.Report{}, err
	}
	if problem := r.unfit(); problem != "" {
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
	if err := s.inTime(ctx); err != nil {
		return dedupstore.Report{}, err
	}
	sync := s.sync(ctx)
	losses := append(r.losses(sync), l.losses()...)
	return dedupstore.Report{
		Store: "cassandra", Version: release, Losses: losses,
		Warnings: append(append(r.warnings(), l.warnings()...), losses...),
		Durability: fmt.Sprintf("a quorum of %d replicas confirms each write; nodes that lose power together lose "+
			"what they had not flushed: commitlog_sync is %s", r.count(), sync),
	}, nil
}

// nodes counts the nodes by their datacenters: those that the session knows, and those that its filter, or its driver's
// settings, keep from it. It returns the version of the node that answers.
func (s *Store) nodes(ctx context.Context, r *replicas) (release string, err error) {
	known, of := map[string]bool{}, map[string]string{} // datacenters
	for _, host := range s.session.GetHosts() {
		known[host.DataCenter()] = true
		of[host.HostID()] = host.DataCenter()
	}
	err = s.do(ctx, func(ctx context.Context) error {
		var id gocql.UUID
		q := s.session.Query("SELECT release_version, data_center, host_id FROM system.local")
		if err := q.ScanContext(ctx, &release, &r.here, &id); err != nil {
			return err
		}
		of[id.String()] = r.here
		var datacenter string
		peers := s.session.Query("SELECT host_id, data_center FROM system.peers").IterContext(ctx)
		for peers.Scan(&id, &datacenter) {
			of[id.String()] = datacenter
		}
		return peers.Close()
	})
	r.knows, r.nodes = len(known), map[string]int{}
	for _, datacenter := range of {
		r.nodes[datacenter]++
	}
	return release, err
}

// sync is how the node that answers flushes its log.
func (s *Store) sync(ctx context.Context) string {
	var how string
	err := s.do(ctx, func(ctx context.Context) error {
		q := s.session.Query("SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'")
		return q.ScanContext(ctx, &how)
	})
	if err != nil || how == "" {
		return "not known"
	}
	return how
}

// Replicas are where a keyspace has its records.
type replicas struct {
	local bool           // one datacenter decides
	here  string         // the datacenter of the session
	of    map[string]int // how many there are by datacenter, which is "" if the strategy knows none
	nodes map[string]int // how many there are by datacenter
	knows int            // of how many datacenters the session knows nodes
}

// factors reads the replication of a keyspace.
func factors(replication map[string]string) map[string]int {
	of := map[string]int{}
	for name, value := range replication {
		if name == "replication_factor" {
			name = ""
		}
		value, _, _ = strings.Cut(value, "/") // some of them may be transient
		if n, err := strconv.Atoi(value); err == nil && n > 0 {
			of[name] = n
		}
	}
	return of
}

// count is how many replicas decide.
func (r replicas) count() (n int) {
	for datacenter, replicas := range r.of {
		if !r.local || datacenter == "" || datacenter == r.here {
			n += replicas
		}
	}
	return n
}

// unfit says why no claim can be decided.
func (r replicas) unfit() string {
	all, have := 0, 0
	for _, n := range r.nodes {
		all += n
	}
	for datacenter, replicas := range r.of {
		nodes := r.nodes[datacenter]
		if datacenter == "" {
			nodes = all
		}
		if !r.local || datacenter == "" || datacenter == r.here {
			have += min(replicas, nodes)
		}
	}
	switch count := r.count(); {
	case count == 0:
		return fmt.Sprintf("has no replicas in the datacenter %q, whose nodes answer this session, and Config.Local "+
			"lets them decide: ALTER KEYSPACE, or connect to another one", r.here)
	case have < count/2+1:
		return fmt.Sprintf("has %d replicas, and there are nodes for %d, which is no quorum: no claim can be made; "+
			"ALTER KEYSPACE to as many as there are nodes, at best 3 in each datacenter", count, have)
	}
	return ""
}

// losses tell how records can be lost.
func (r replicas) losses(sync string) (losses []string) {
	if r.count() == 1 {
		losses = append(losses, fmt.Sprintf("the keyspace has one replica: records are lost with a node's disk, and "+
			"what a node had not flushed with its process or its power (commitlog_sync is %s); no claim is made for "+
			"its keys while it is down; use 3 replicas", sync))
	}
	if r.local && r.knows > 1 {
		losses = append(losses, fmt.Sprintf("one datacenter decides (Config.Local), and the session knows nodes of "+
			"%d: that of the node that gets a statement decides, and two claims of a key may both run it; let its "+
			"HostFilter be gocql.DataCenterHostFilter", r.knows))
	}
	if r.local && len(r.of) > 1 {
		losses = append(losses, "one datacenter decides (Config.Local), and the keyspace has several: two that claim "+
			"a key at once both run it, and what one has just confirmed is lost to the others if it fails; claim in "+
			"one, or unset Local")
	}
	return losses
}

// warnings are what works but should be changed.
func (r replicas) warnings() (warnings []string) {
	if r.count() == 2 {
		warnings = append(warnings, "the keyspace has two replicas, and a quorum of them is both: no claim is made "+
			"for the keys of a node that is down; use 3")
	}
	if _, simple := r.of[""]; simple && len(r.nodes) > 1 {
		warnings = append(warnings, "the keyspace has a strategy that does not know of datacenters, and there are "+
			"several: use NetworkTopologyStrategy")
	}
	return warnings
}

func (l layout) losses() []string {
	if l.durable {
		return nil
	}
	return []string{"the keyspace has durable_writes off: records that are in memory only are lost when nodes stop; " +
		"ALTER KEYSPACE … WITH durable_writes = true"}
}

// hintWindow is for how long nodes keep what another one has missed, by default.
const hintWindow = 3 * 60 * 60

func (l layout) warnings() []string {
	if l.grace >= hintWindow {
		return nil
	}
	return []string{fmt.Sprintf("the table's gc_grace_seconds is %d: a record that somebody forgot comes back from a "+
		"node that was down for longer; set it to a day", l.grace)}
}
