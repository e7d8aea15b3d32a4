package faults_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// balancedBy are the options of members whose partitions the broker assigns (KIP-848), or, as is usual, one of them.
func balancedBy(broker bool) []kgo.Opt {
	if broker {
		return []kgo.Opt{kgo.ServerSideBalancer()}
	}
	return nil
}

// A seat is what the coordinator says of a member of the group.
type seat struct {
	member     string // its ID
	partitions string // sorted
	classic    bool   // it has joined by the classic protocol
}

// seats are the members of the group, by instance ID, or by member ID if they have none. Nil: the group is not stable.
func (r *kafkaRig) seats() map[string]seat {
	r.t.Helper()
	seats := map[string]seat{}
	add := func(instance *string, member string, partitions []int32, classic bool) {
		slices.Sort(partitions)
		seats[*cmp.Or(instance, &member)] = seat{member, fmt.Sprint(partitions), classic}
	}
	consumers, err := r.adm.DescribeConsumerGroups(r.t.Context(), r.group)
	if g := consumers[r.group]; err == nil && g.Err == nil {
		if g.State != "Stable" {
			return nil
		}
		for _, m := range g.Members {
			add(m.InstanceID, m.MemberID, slices.Collect(maps.Keys(m.Assignment[r.topic])), m.MemberType == 0)
		}
		return seats
	}
	groups, err := r.adm.DescribeGroups(r.t.Context(), r.group)
	g := groups[r.group]
	if err != nil || g.Err != nil || g.State != "Stable" {
		return nil
	}
	for _, m := range g.Members {
		var partitions []int32
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				partitions = append(partitions, t.Partitions...)
			}
		}
		add(m.InstanceID, m.MemberID, partitions, true)
	}
	return seats
}

// seated waits until the group has so many members, each with as many partitions as the others.
func (r *kafkaRig) seated(members int) (seats map[string]seat) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("%d members with %d partitions each", members, r.partitions/members), func() bool {
		seats = r.seats()
		if len(seats) != members {
			return false
		}
		for _, s := range seats {
			if len(strings.Fields(s.partitions)) != r.partitions/members || s.partitions == "[]" {
				return false
			}
		}
		return true
	})
	return seats
}

// wantProtocol checks by which protocol the members of the group have joined.
func (r *kafkaRig) wantProtocol(serverSide bool) {
	r.t.Helper()
	var seats map[string]seat
	until(r.t, "members in a stable group", func() bool { seats = r.seats(); return len(seats) > 0 })
	for name, s := range seats {
		if s.classic == serverSide {
			r.t.Errorf("member %s has joined by the wrong protocol: classic %v, want %v", name, s.classic, !serverSide)
		}
	}
}

// generation waits until the members agree upon the generation of their group, and returns it.
func generation(t *testing.T, members ...*kafkaMember) (common int32) {
	t.Helper()
	until(t, "one generation", func() bool {
		_, common = members[0].cl.GroupMetadata()
		return common > 0 && !slices.ContainsFunc(members, func(m *kafkaMember) bool {
			_, g := m.cl.GroupMetadata()
			return g != common
		})
	})
	return common
}

// commits are the offsets of the group with who has committed them: kgo writes the member's ID beside each.
func (r *kafkaRig) commits() map[int32]kadm.Offset {
	r.t.Helper()
	fetched, err := r.adm.FetchOffsets(r.t.Context(), r.group)
	if err != nil {
		r.t.Fatal(err)
	}
	commits := map[int32]kadm.Offset{}
	for p, o := range fetched[r.topic] {
		commits[p] = o.Offset
	}
	return commits
}

// takesOver waits until another member than before has the seat, and has committed something of each of its partitions.
func (r *kafkaRig) takesOver(name string, before seat) {
	r.t.Helper()
	until(r.t, "commits by another "+name, func() bool {
		now := r.seats()[name]
		if now.member == "" || now.member == before.member || now.partitions == "[]" {
			return false
		}
		commits := r.commits()
		for p := range int32(r.partitions) {
			if slices.Contains(strings.Fields(strings.Trim(now.partitions, "[]")), fmt.Sprint(p)) && commits[p].Metadata != now.member {
				return false
			}
		}
		return true
	})
}
