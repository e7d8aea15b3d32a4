package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/jetstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/oncemill/oncemill/bench/internal/kit"
	"github.com/oncemill/oncemill/dedupstore/pgstore"
	"github.com/oncemill/oncemill/internal/testserver"
)

// The cases, as the table has them. They are the fates of orders and, for short, their IDs.
const (
	handlerFails  = "the handler fails once"
	copyDuringRun = "a copy comes during the run"
	ackLost       = "the ack is lost"
	copyElsewhere = "a copy comes after a restart"
	diesBefore    = "the process dies before the charge"
	diesAfter     = "the process dies after the charge, before the ack"
	publishFails  = "the handler's event cannot be published once"
	otherAmount   = "the same ID comes with another amount"
)

var cases = []string{
	handlerFails, copyDuringRun, ackLost, copyElsewhere, diesBefore, diesAfter, publishFails, otherAmount,
}

const (
	fateHeader = "fate"
	ackWait    = 5 * time.Second // after which JetStream delivers again what a dead process had
	caseLimit  = 3 * time.Minute // how long a step may take
)

// A world is the servers, and tables for the books.
type world struct {
	nats     *kit.NATS
	redis    *kit.Redis
	postgres *kit.Postgres
	js       jetstream.JetStream
}

func openWorld(ctx context.Context) (w *world, err error) {
	w = &world{}
	if w.postgres, err = kit.StartPostgres(); err == nil {
		if w.redis, err = kit.StartRedis(); err == nil {
			w.nats, err = kit.StartNATS()
		}
	}
	if err == nil {
		w.js, err = jetstream.New(w.nats.Admin)
	}
	if err == nil {
		err = w.createTables(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) createTables(ctx context.Context) error {
	for _, table := range []string{
		`charges (shop text, way text, id text, amount text)`,
		`published (shop text, topic text, content text)`,
		`firsts (shop text, what text, id text, PRIMARY KEY (shop, what, id))`,
		`processed_messages (message_id text PRIMARY KEY)`,
	} {
		if _, err := w.postgres.Admin.Exec(ctx, `CREATE TABLE `+table); err != nil {
			return err
		}
	}
	store, err := pgstore.New(w.postgres.Admin, pgstore.Config{Logger: quiet})
	if err != nil {
		return err
	}
	return store.Migrate(ctx)
}

func (w *world) close() (err error) {
	if w.nats != nil {
		err = w.nats.Stop()
	}
	if w.redis != nil {
		err = errors.Join(err, w.redis.Stop())
	}
	if w.postgres != nil {
		err = errors.Join(err, w.postgres.Stop())
	}
	return err
}

// table plays all cases with all ways, and returns what came of it in Markdown.
func (w *world) table(ctx context.Context) (string, error) {
	columns, failed := make([]map[string]string, len(order)), make([]error, len(order))
	var all sync.WaitGroup
	for i, key := range order {
		all.Go(func() { columns[i], failed[i] = w.play(ctx, key) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return "", err
	}
	var out strings.Builder
	row := func(cells []string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	head := []string{"case"}
	for _, key := range order {
		head = append(head, ways[key].name)
	}
	row(head)
	out.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, name := range cases {
		cells := []string{name}
		for _, column := range columns {
			cells = append(cells, column[name])
		}
		row(cells)
	}
	return out.String(), nil
}

// A shop is a stream of orders, and the durable consumer that its services share.
type shop struct {
	*world
	name   string
	broker bool // orders carry Nats-Msg-Id
	stream jetstream.Stream
	out    message.Publisher
}

func (w *world) openShop(ctx context.Context, name string, broker bool) (*shop, error) {
	s := &shop{world: w, name: name, broker: broker}
	var err error
	s.stream, err = kit.FreshStream(ctx, w.js, jetstream.StreamConfig{Name: name, Subjects: []string{name}})
	if err != nil {
		return nil, err
	}
	_, err = s.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
	})
	if err == nil {
		s.out, err = stock.NewPublisher(stock.PublisherConfig{Conn: w.nats.Admin, Logger: watermill.NopLogger{}})
	}
	return s, err
}

// at is the address of a service of the shop.
func (s *shop) at(key string) address {
	return address{Shop: s.name, Way: key, NATS: s.nats.URL, Redis: s.redis.Addr, DSN: s.postgres.DSN}
}

// place publishes an order.
func (s *shop) place(id, fate, amount string) error {
	m := message.NewMessage(s.name+"/"+id, []byte(amount))
	m.Metadata.Set(fateHeader, fate)
	if s.broker {
		m.Metadata.Set(jetstream.MsgIDHeader, m.UUID)
	}
	return s.out.Publish(s.name, m)
}

// settled waits until everything is acknowledged.
func (s *shop) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	return testserver.Until(ctx, func() error { return kit.Acknowledged(ctx, s.stream, durable) })
}

// play gives each case to one way. Those that kill a process have shops of their own, so that all wait side by side.
func (w *world) play(ctx context.Context, key string) (map[string]string, error) {
	endings, failed := make([]map[string]string, len(acts)), make([]error, len(acts))
	var all sync.WaitGroup
	for i, a := range acts {
		all.Go(func() { endings[i], failed[i] = w.act(ctx, fmt.Sprintf("%s-%d", key, i), key, a) })
	}
	all.Wait()
	for _, more := range endings[1:] {
		maps.Copy(endings[0], more)
	}
	return endings[0], errors.Join(failed...)
}

// An act is some cases that one shop can play.
type act struct {
	cases []string
	play  func(context.Context, *staff) error
}

var acts = []act{
	{[]string{handlerFails, copyDuringRun, ackLost, copyElsewhere, publishFails, otherAmount}, faults},
	{[]string{diesBefore}, death(diesBefore)},
	{[]string{diesAfter}, death(diesAfter)},
}

func (w *world) act(ctx context.Context, name, key string, a act) (endings map[string]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	s := &staff{key: key}
	if s.shop, err = w.openShop(ctx, name, ways[key].broker); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "oncemill-compare-"); err != nil {
		return nil, err
	}
	defer func() {
		if s.process != nil {
			if err != nil {
				err = fmt.Errorf("%w\n%s", err, s.process.Output())
			}
			err = errors.Join(err, s.process.Stop())
		}
		err = errors.Join(err, os.RemoveAll(s.dir))
	}()
	if err := errors.Join(s.start(), a.play(ctx, s)); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s.endings(ctx, a.cases)
}

// faults are the cases that no process dies of.
func faults(ctx context.Context, s *staff) error {
	var err error
	for _, fate := range []string{
		handlerFails, copyDuringRun, copyDuringRun, ackLost, copyElsewhere, publishFails, otherAmount,
	} {
		err = errors.Join(err, s.place(fate, fate, "12"))
	}
	return errors.Join(err, s.settled(ctx),
		s.place(otherAmount, otherAmount, "21"), s.settled(ctx),
		s.process.Stop(), s.start(), s.place(copyElsewhere, copyElsewhere, "12"), s.settled(ctx))
}

// death is a case that kills the process.
func death(fate string) func(context.Context, *staff) error {
	return func(ctx context.Context, s *staff) error {
		if err := s.place(fate, fate, "12"); err != nil {
			return err
		}
		select {
		case <-s.process.Ended():
		case <-ctx.Done():
			return fmt.Errorf("a process lives on, though %s: %w", fate, ctx.Err())
		}
		return errors.Join(s.start(), s.settled(ctx))
	}
}

// A staff is the process of a shop's service.
type staff struct {
	*shop
	key     string
	dir     string
	process *testserver.Process
}

// start runs this program once more, as the service.
func (s *staff) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(s.at(s.key))
	if err != nil {
		return err
	}
	s.process, err = testserver.StartProgram(s.dir, program, serviceRole, string(text))
	return err
}

// endings are what came of each case, in the words of the table. What somebody has to apologise for is bold.
func (s *shop) endings(ctx context.Context, cases []string) (map[string]string, error) {
	endings := map[string]string{}
	for _, name := range cases {
		var charges, sent, dead int
		err := s.postgres.Admin.QueryRow(ctx, `SELECT
			(SELECT count(*) FROM charges WHERE shop = $1 AND id = $2),
			(SELECT count(*) FROM published WHERE shop = $1 AND topic = $3 AND content = $2),
			(SELECT count(*) FROM published WHERE shop = $1 AND topic = $4)`,
			s.name, s.name+"/"+name, receipts, deadLetters).Scan(&charges, &sent, &dead)
		if err != nil {
			return nil, err
		}
		switch {
		case charges == 0:
			endings[name] = "**lost**"
		case charges == 2:
			endings[name] = "**twice**"
		case charges > 2:
			endings[name] = fmt.Sprintf("**%d times**", charges)
		case name == publishFails && sent == 0:
			endings[name] = "**event lost**"
		case name == otherAmount && dead == 1:
			endings[name] = "refused"
		case name == otherAmount:
			endings[name] = "dropped"
		default:
			endings[name] = "once"
		}
	}
	return endings, nil
}
