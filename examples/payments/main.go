// The payments example takes payments by HTTP, books each in a ledger, and tells another company's API about it. Each
// step happens exactly as often as it should, whatever crashes.
//
//		client ─POST─► service ─outbox─► relay ─► JetStream ─►
//		charge ─outbox─► relay ─► JetStream ─► notify ─POST─► api
//
//	  - service writes the payment and its event in one transaction. The ID is the client's: whoever repeats the
//	    request means the same payment.
//	  - relay publishes what is in the outbox, perhaps more than once.
//	  - charge writes the ledger. Its handler runs in a transaction of the inbox, which commits the entries, the
//	    balances, the receipt's outbox row and the outcome together. So nothing is booked twice, whatever crashes.
//	    With -batch 16 a transaction books up to 16 payments.
//	  - notify calls an API, which no transaction can take back. Its claim is a lease in the same database. A
//	    crash between the call and its outcome makes a second call with the same idempotency key, the ID of the run.
//	  - api is a stub of that API, which honours idempotency keys and loses one in ten answers.
//
// Three processes charge and notify. The example starts them and sends payments and duplicates of every kind: clients
// ask again, relays and consumers lose acknowledgements, somebody publishes messages again. It kills some processes
// with SIGKILL, and closes the books at the end.
//
//	go run ./examples/payments -embedded
//
// needs nothing but Go: everything is in one SQLite file, and NATS runs in the first process. File and streams lie in
// oncemill-payments-… in the temporary folder (TMPDIR). The example removes that at the end, also after the first
// SIGINT or SIGTERM; a second one, or SIGKILL, leaves it there. Without -embedded the example uses the servers of
// compose.yaml:
//
//	docker compose up -d --wait
//	go run ./examples/payments
//
// You would write service.go and database.go yourself. Exit status: 0 if the books balance, 1 if they do not
// or something broke, 2 for wrong flags.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/oncemill/oncemill/examples/internal/bank"
	"github.com/oncemill/oncemill/examples/internal/shop"
)

func main() {
	if text, is := os.LookupEnv(childEnv); is {
		os.Exit(child(context.Background(), text, nil))
	}
	o := options{Lease: time.Second, Seed: 1}
	os.Exit(o.main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags, and what consumers are told beside them.
type options struct {
	Embedded bool
	Postgres string
	MySQL    string // empty: PostgreSQL
	SQLite   string // a file; empty: a server
	NATS     string
	Payments int
	Kills    int
	Batch    int
	Keep     string

	Run   string // part of all names at servers
	Seed  uint64
	Lease time.Duration
	API   string // which notify calls
}

var runName = regexp.MustCompile(`^[a-z0-9][a-z0-9_]{0,29}$`)

func (o options) main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.BoolVar(&o.Embedded, "embedded", false, "install nothing: use SQLite, not PostgreSQL, and a NATS in here")
	flags.StringVar(&o.Postgres, "postgres", "postgres://postgres@127.0.0.1:5432/shop", "keep everything at this `URL`")
	flags.StringVar(&o.MySQL, "mysql", "", "keep everything at this `URL`, mysql://USER@HOST:PORT, instead of "+
		"PostgreSQL")
	flags.StringVar(&o.SQLite, "sqlite", "", "keep everything in this SQLite `file`, instead of PostgreSQL")
	flags.StringVar(&o.NATS, "nats", "nats://127.0.0.1:4222", "use the NATS JetStream server at this `URL`")
	flags.IntVar(&o.Payments, "payments", 300, "how many payments are sent, 20 to 100000")
	flags.IntVar(&o.Batch, "batch", 1, "how many payments one transaction books at most, 1 to 64")
	flags.IntVar(&o.Kills, "kills", 6, "how many consumer processes are killed meanwhile, 0 to 10000")
	flags.StringVar(&o.Keep, "keep", "", "leave at the servers what the run has made there, under this `name`")
	return shop.Main(ctx, flags, args, stderr, func(ctx context.Context, dir string) (bool, error) {
		err := errors.Join(
			shop.CheckRange("payments", o.Payments, 20, 100_000),
			shop.CheckRange("batch", o.Batch, 1, 64),
			shop.CheckRange("kills", o.Kills, 0, 10_000),
			shop.OnlyServers(flags, o.Embedded, "postgres", "mysql", "sqlite", "nats", "keep"))
		switch {
		case err != nil:
			return false, err
		case o.Keep == "":
			o.Run = shop.RunName()
		case !runName.MatchString(o.Keep):
			return false, shop.WrongFlag("-keep is %q, want up to 30 of a-z, 0-9 and _", o.Keep)
		default:
			o.Run = o.Keep
		}
		b, err := o.conduct(ctx, dir, stderr)
		switch {
		case err != nil && ctx.Err() != nil:
			return false, fmt.Errorf("interrupted: the books were not closed: %w", err)
		case err != nil:
			return false, err
		}
		shop.Say(stderr, "%s\n", b.verdict())
		books, err := json.MarshalIndent(b, "", "\t")
		shop.Say(stdout, "%s\n", books)
		return b.Balance(), err
	})
}

// closeTime is how long the end may take.
const closeTime = 30 * time.Second

// conduct makes what the run stands on, and plays on it. Its messages to people go to out.
func (o options) conduct(ctx context.Context, dir string, out io.Writer) (b Books, err error) {
	if o.Embedded {
		shop.Say(out, "-embedded: everything is kept in SQLITE INSTEAD OF POSTGRESQL, and NATS runs in this process\n")
		o.NATS, o.SQLite = "", filepath.Join(dir, "payments.db")
	}
	db, err := openDatabase(ctx, o, tables...)
	if err != nil {
		return b, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	before, err := db.facts(ctx)
	if err != nil {
		return b, err
	}
	if len(before) > 0 { // nobody has sent them, the books would say; they are not this run's to remove
		return b, errors.New("the database has payments of another run: want a new file for -sqlite, or another -keep")
	}
	if o.Keep == "" {
		defer shop.Finish(ctx, &err, db.Remove)
	}
	br, closing, err := connect(o, dir)
	if err != nil {
		return b, err
	}
	defer closing()
	o.NATS = cmp.Or(o.NATS, br.js.Conn().ConnectedUrl())
	if err := br.makeStream(ctx); err != nil {
		return b, shop.NoServer("nats", shop.Redacted(o.NATS), err)
	}
	if o.Keep == "" {
		defer shop.Finish(ctx, &err, func(ctx context.Context) error { return br.js.DeleteStream(ctx, br.stream()) })
	}
	return o.play(ctx, db, br, out)
}

// play serves, starts consumers, sends payments, kills consumers, waits until all is done, and closes the books.
func (o options) play(ctx context.Context, db *database, br *broker, out io.Writer) (b Books, err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return b, err
	}
	url := "http://" + l.Addr().String()
	mux, api := http.NewServeMux(), bank.NewStub(10)
	mux.Handle("/payments", takePayments(db, br.payments()))
	mux.Handle("/transfers", api)
	ctx, stop := context.WithCancelCause(ctx)
	served := make(chan error, 1)
	go func() {
		err := shop.Serve(ctx, l, mux, func(ctx context.Context) error {
			return relay(ctx, db.Box, shop.ForgetTenth(br.pub))
		})
		stop(fmt.Errorf("the service broke: %w", err))
		served <- err
	}()
	defer func() {
		stop(nil)
		err = errors.Join(err, <-served)
	}()

	o.API = url
	c, err := hire(ctx, o, stop)
	if err != nil {
		return b, err
	}
	defer c.killAll()
	all := plan(o)
	shop.Say(out, "%d payments by HTTP; %d times a consumer is killed\n", len(all), o.Kills)
	client := shop.NewClient(url + "/payments")
	defer client.Close()
	var done atomic.Int64
	err = shop.Each(ctx, len(all), 8, func(paying context.Context, i int) error {
		if err := pay(paying, client, br, all[i]); err != nil {
			return fmt.Errorf("payment %s: %w", all[i].ID, err)
		}
		n := int(done.Add(1))
		if n%1000 == 0 {
			shop.Say(out, "%d of %d payments have an answer\n", n, len(all))
		}
		return c.kill(ctx, n*o.Kills/len(all))
	})
	if err != nil {
		return b, err
	}
	shop.Say(out, "all payments have an answer; waiting until every message is acknowledged\n")
	if err := shop.Settled(ctx, db.Box, br.js, br.stream(), charge, notify); err != nil {
		return b, err
	}
	if err := c.dismiss(ctx, closeTime); err != nil {
		return b, err
	}
	b, err = readBooks(ctx, all, db, br, api)
	b.Requests, b.Kills = int(client.Requests.Load()), c.killed
	return b, err
}

// pay is one client's payment, with its luck.
func pay(ctx context.Context, client *shop.Client, br *broker, p planned) error {
	ask := func(ctx context.Context, _ int) error {
		status, err := client.Insist(ctx, p.JSON())
		if err == nil && status != http.StatusCreated && status != http.StatusOK {
			err = fmt.Errorf("the service answers %d", status)
		}
		return err
	}
	switch p.luck {
	case doubled:
		return shop.Each(ctx, 2, 2, ask)
	case hungUp:
		brief, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		defer cancel()
		_, _ = client.Post(brief, p.JSON()) // whatever came of it, it asks again
	}
	if err := ask(ctx, 0); err != nil || p.luck != repeated {
		return err
	}
	// Some copies come while the payment is booked, others after the stream has stopped looking for copies.
	if err := shop.Pause(ctx, rand.N(400*time.Millisecond)); err != nil {
		return err
	}
	return shop.PublishCopy(ctx, br.js, br.payments(), p.ID, p.JSON())
}
