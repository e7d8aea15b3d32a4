package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/oncemill/oncemill/dedupstore"
)

const (
	// scanCount is how many names one SCAN looks at: it holds the server for one or two milliseconds.
	scanCount = 1000

	// pageScans is how many SCANs a page has at most.
	pageScans = 8
)

// List implements [dedupstore.Inspector]: SCAN finds the names, and GETRANGE reads the heads of the records where the
// filter asks for more than a name can tell. In a Cluster it goes from one master to the next.
//
// Records that cannot be read are in an error, [*dedupstore.RecordError], which comes with the rest of the page. After
// a restart or a failover, or while slots are being moved, a list may leave records out: begin again. If a Cluster has
// other masters than before, an error says so.
//
// The first page of a list by ID has the records of the scopes that are common, the other pages those of all scopes.
func (s *Store) List(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Page, error) {
	q := s.search(f)
	var records []dedupstore.Record
	var unreadable error
	visit := func(names []string) error {
		names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, beside) })
		if q.heads {
			glances, err := s.glance(ctx, q, names)
			if err != nil {
				return err
			}
			names = names[:0]
			for _, g := range glances {
				seen, err := g.record()
				if err != nil || q.rest.Matches(&seen) { // below it is said what cannot be read
					names = append(names, g.name)
				}
			}
		}
		looked, err := s.lookUp(ctx, names)
		for _, l := range looked {
			key, foreign := q.key(l.name)
			if foreign != nil {
				continue
			}
			seen, err := l.record()
			seen.Key = key
			if err != nil {
				unreadable = errors.Join(unreadable, err)
			} else if f.Matches(&seen) {
				records = append(records, seen)
			}
		}
		return err
	}
	var page dedupstore.Page
	var err error
	if f.ID != "" && after == "" {
		page, err = s.common(ctx, f, visit)
	} else {
		page, err = s.walk(ctx, q, after, visit)
	}
	if err != nil {
		return dedupstore.Page{}, fmt.Errorf("redisstore: list: %w", err)
	}
	page.Records = records
	return page, unreadable
}

// Count implements [dedupstore.Inspector] like List, and reads the heads of the records only, and how many duplicates
// came where some did.
func (s *Store) Count(ctx context.Context, f dedupstore.Filter, after string) (dedupstore.Count, error) {
	q := s.search(f)
	type group struct {
		scope string
		state dedupstore.State
		kind  dedupstore.Kind
	}
	tallies := map[group]*dedupstore.Tally{}
	scope := dedupstore.Filter{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler}
	var unreadable error
	page, err := s.walk(ctx, q, after, func(names []string) error {
		glances, err := s.glance(ctx, q, names)
		for _, g := range glances {
			seen, err := g.record()
			if err != nil {
				if _, foreign := q.key(g.name); foreign == nil {
					unreadable = errors.Join(unreadable, err)
				}
				continue
			}
			if !q.rest.Matches(&seen) {
				continue
			}
			of := group{g.name[:strings.LastIndexByte(g.name, ':')], seen.State, seen.Outcome.Kind}
			t := tallies[of]
			if t == nil {
				key, foreign := q.key(g.name)
				if foreign != nil || !scope.Matches(&dedupstore.Record{State: seen.State, Key: key}) {
					continue
				}
				t = &dedupstore.Tally{
					Tenant: key.Tenant, Group: key.Group, Handler: key.Handler, State: of.state, Kind: of.kind,
				}
				tallies[of] = t
			}
			if g.count == nil {
				t.Records++
			} else if n, err := g.count.Int(); err == nil {
				t.Duplicates += n
			}
		}
		return err
	})
	if err != nil {
		return dedupstore.Count{}, fmt.Errorf("redisstore: count: %w", err)
	}
	c := dedupstore.Count{Next: page.Next, Looked: page.Looked, Total: page.Total}
	for t := range maps.Values(tallies) {
		c.Tallies = append(c.Tallies, *t)
	}
	return c, unreadable
}

// A search is a filter, as names and the heads of records know it.
type search struct {
	prefix  string            // of the names
	pattern string            // of the names of records, and of what is beside them, also those of longer IDs
	id      string            // what the names of records end in; empty: anything
	rest    dedupstore.Filter // without what the names tell
	heads   bool              // rest asks for something
	end     int64             // of what rest asks about: the last byte
}

func (s *Store) search(f dedupstore.Filter) search {
	key := dedupstore.Key{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler, ID: f.ID}
	q := search{prefix: s.config.Prefix + ":", rest: f, end: headSize - 1}
	q.rest.Tenant, q.rest.Group, q.rest.Handler, q.rest.ID = "", "", "", ""
	if f.Reason != "" {
		q.end = -1
	}
	if f.ID != "" {
		q.id = strings.TrimPrefix(dedupstore.Key{ID: f.ID}.String(), "::")
	}
	q.heads = len(f.States) > 0 || len(f.Kinds) > 0 || f.Reason != "" || !f.Since.IsZero() || !f.Before.IsZero()
	q.pattern = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(q.prefix)
	asked := strings.Split(key.String(), ":")
	for i, part := range asked {
		asked[i] = cmp.Or(part, "*")
	}
	// The server takes long over many stars, and each name that it lets through is looked at here.
	asked = slices.CompactFunc(asked, func(a, b string) bool { return a == "*" && b == "*" })
	q.pattern += strings.Join(asked, ":") + "*"
	return q
}

// key reads a name. The error says that it is none of a record.
func (q search) key(name string) (dedupstore.Key, error) {
	return dedupstore.ParseKey(name[len(q.prefix):])
}

// A place is where a page begins.
type place struct {
	total  uint
	layout uint32 // checksum of the masters' addresses
	node   uint
	cursor uint64
}

func (p place) String() string {
	return fmt.Sprintf("%d.%d.%d.%d", p.total, p.layout, p.node, p.cursor)
}

func parsePlace(s string) (p place, err error) {
	if _, err = fmt.Sscanf(s, "%d.%d.%d.%d", &p.total, &p.layout, &p.node, &p.cursor); err != nil || p.String() != s {
		err = &dedupstore.InvalidError{
			Package: "redisstore", Field: "after", Problem: fmt.Sprintf("is %q, want the Next of a page", s),
		}
	}
	return p, err
}

// walk visits the names that match, and returns a page without records. While names are visited, the server already
// looks for the next ones.
func (s *Store) walk(
	ctx context.Context, q search, after string, visit func(names []string) error,
) (page dedupstore.Page, err error) {
	nodes, layout, err := s.masters(ctx)
	if err != nil {
		return page, err
	}
	at := place{layout: layout}
	if after == "" {
		var n int64
		n, err = s.rdb.DBSize(ctx).Result()
		at.total = uint(n)
	} else {
		at, err = parsePlace(after)
	}
	if err == nil && (at.layout != layout || at.node >= uint(len(nodes))) {
		err = errors.New("the cluster has other masters than when the list began: begin again")
	}
	if err != nil {
		return page, err
	}
	page.Total = int(at.total)
	node, asked := nodes[at.node], make(chan *redis.ScanCmd, 1)
	scan := func() { asked <- node.Scan(ctx, at.cursor, q.pattern, scanCount) }
	scan()
	var ahead sync.WaitGroup
	defer ahead.Wait()
	for left := pageScans - 1; left >= 0; left-- {
		names, cursor, err := (<-asked).Result()
		if err != nil {
			return page, err
		}
		at.cursor = cursor
		if cursor != 0 && left > 0 {
			ahead.Go(scan)
		}
		if page.Looked += len(names); at.cursor != 0 {
			page.Looked += max(0, scanCount-len(names)) // that the pattern did not match
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			return !strings.HasSuffix(strings.TrimSuffix(name, beside), q.id)
		})
		if err := visit(names); err != nil {
			return page, err
		}
		if cursor == 0 {
			at.node++
			break
		}
	}
	if at.node < uint(len(nodes)) {
		page.Next = at.String()
	}
	return page, nil
}

// common visits, for a list by ID, the names in the scopes of the first records that the server has: where there are
// millions, all pages take seconds. The list begins after it.
func (s *Store) common(
	ctx context.Context, f dedupstore.Filter, visit func(names []string) error,
) (page dedupstore.Page, err error) {
	scopes := s.search(dedupstore.Filter{Tenant: f.Tenant, Group: f.Group, Handler: f.Handler})
	names := map[string]bool{}
	page, err = s.walk(ctx, scopes, "", func(seen []string) error {
		for _, name := range seen {
			if key, foreign := scopes.key(strings.TrimSuffix(name, beside)); foreign == nil {
				key.ID = f.ID
				names[s.name(key)] = true
			}
		}
		return nil
	})
	for some := range slices.Chunk(slices.Sorted(maps.Keys(names)), scanCount) {
		if err == nil {
			err = visit(some)
		}
	}
	if err == nil && page.Next != "" { // else it has looked at all
		var at place
		at, err = parsePlace(page.Next)
		at.node, at.cursor = 0, 0
		page.Next, page.Looked = at.String(), 0
	}
	return page, err
}

// masters returns the servers that have the records, always in the same order, and a checksum of their addresses.
func (s *Store) masters(ctx context.Context) ([]redis.Cmdable, uint32, error) {
	if s.cluster == nil {
		return []redis.Cmdable{s.rdb}, 0, nil
	}
	var mu sync.Mutex
	byAddr := map[string]redis.Cmdable{}
	err := s.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		byAddr[c.Options().Addr] = c
		return nil
	})
	var nodes []redis.Cmdable
	addrs := slices.Sorted(maps.Keys(byAddr))
	for _, addr := range addrs {
		nodes = append(nodes, byAddr[addr])
	}
	return nodes, crc32.ChecksumIEEE([]byte(strings.Join(addrs, " "))), err
}

// A glance is what was asked about the beginning of a record.
type glance struct {
	name  string
	head  *redis.StringCmd
	count *redis.StringCmd // how many duplicates came; nil: it is not about them
}

// glance asks about names, those of records and of what is beside them.
func (s *Store) glance(ctx context.Context, q search, names []string) ([]glance, error) {
	pipe := s.rdb.Pipeline()
	asked := make([]glance, len(names))
	for i, name := range names {
		record, noted := strings.CutSuffix(name, beside)
		asked[i] = glance{name: record, head: pipe.GetRange(ctx, record, 0, q.end)}
		if noted {
			asked[i].count = pipe.HGet(ctx, name, "count")
		}
	}
	_, failed := pipe.Exec(ctx)
	err := untold(failed)
	for _, g := range asked {
		err = cmp.Or(err, untold(g.head.Err()))
	}
	return asked, err
}

// record reads what the head tells.
func (g glance) record() (dedupstore.Record, error) {
	if g.head.Val() == "" && g.head.Err() == nil {
		return dedupstore.Record{State: dedupstore.Absent}, nil
	}
	return decodeSeen(g.name, g.head)
}
