package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/consumer/deadletters"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/consumertest"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/testserver/kafkatest"
	"github.com/oncemill/oncemill/internal/testserver/natstest"
	"github.com/oncemill/oncemill/internal/testserver/redistest"
)

const (
	largeRecords = 3_000_000
	largeLetters = 1_000_000
)

// A large is a console over a store and a topic of dead letters in which there are millions.
type large struct {
	*testing.T
	redis    *redis.Client
	store    dedupstore.Inspector
	sample   dedupstore.Record
	flags    []string
	url      string
	listed   string // the page with the letters
	slowest  atomic.Int64
	failures atomic.Int64 // pages with a status of 500 and more
}

// TestProof_Millions measures what operators wait for where there are three million records in Redis, and a million
// dead letters in JetStream and in Kafka. It takes some fifteen minutes.
func TestProof_Millions(t *testing.T) {
	if !proof {
		t.Skip("ONCEMILL_PROOF is not 1")
	}
	l := &large{T: t, redis: redistest.Start(t).Client()}
	l.flags = []string{"--store", "redis://" + l.redis.Options().Addr}
	l.fill()
	l.explains()
	for name, start := range map[string]func(){"JetStream": l.onNATS, "Kafka": l.onKafka} {
		t.Run(name, func(t *testing.T) {
			outer := l.T
			defer func() { l.T = outer }()
			l.T = t
			start()
			l.letters()
		})
	}
	t.Run("refresh without end", func(t *testing.T) {
		l.T = t
		l.refreshes()
	})
}

func (l *large) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// within fails if something took too long. Figures are printed in any case.
func (l *large) within(what string, took, most time.Duration) {
	l.Helper()
	l.Logf("%s: %v (at most %v)", what, took.Round(time.Millisecond), most)
	if took > most {
		l.Errorf("%s takes %v, want at most %v", what, took, most)
	}
}

func largeKey(n int) dedupstore.Key {
	return dedupstore.Key{Tenant: "default", Group: "billing", Handler: "charge", ID: "order-" + strconv.Itoa(n)}
}

// fill writes the records: copies of two that the store has written.
func (l *large) fill() {
	store, done, err := open(l.flags[1])
	l.must(err)
	l.Cleanup(done)
	l.store = store
	end := func(n int, o dedupstore.Outcome) (raw string) {
		a, err := dedupstore.ClaimOne(l.Context(), store, dedupstore.Request{
			Key: largeKey(n), Owner: rand.Text(), Lease: time.Hour, Retention: 24 * time.Hour, MaxAttempts: 1,
			Holder: "billing-1:417",
		})
		l.must(err)
		l.must(dedupstore.SettleOne(l.Context(), store, a.Claim, dedupstore.Finish{
			Outcome: o, Retention: 24 * time.Hour, Published: true,
		}))
		all := l.redis.Keys(l.Context(), "*:"+largeKey(n).String()).Val()
		if len(all) != 1 {
			l.Fatalf("the record is in %v", all)
		}
		prefix, _, _ := strings.Cut(all[0], largeKey(n).String())
		l.must(l.redis.Set(l.Context(), "prefix of the test", prefix, time.Hour).Err())
		return l.redis.Get(l.Context(), all[0]).Val()
	}
	good := end(0, dedupstore.Outcome{Kind: dedupstore.Succeeded})
	bad := end(1, dedupstore.Outcome{Kind: dedupstore.Failed, Reason: "card service: POST /charges/17: 503"})
	records, err := store.Look(l.Context(), []dedupstore.Key{largeKey(1)})
	l.must(err)
	l.sample = records[0]
	var uses []dedupstore.ScopeUse
	for _, handler := range []string{"charge", "receipt", "audit", "ship"} {
		scope := largeKey(0).Scope()
		scope.Handler = handler
		uses = append(uses, dedupstore.ScopeUse{Scope: scope, First: time.Now(), Last: time.Now()})
	}
	l.must(store.(dedupstore.ScopeKeeper).NoteScopes(l.Context(), uses))
	prefix := l.redis.GetDel(l.Context(), "prefix of the test").Val()
	l.must(l.redis.ConfigSet(l.Context(), "appendonly", "no").Err())
	began := time.Now()
	for from := 0; from < largeRecords; from += 10_000 {
		pipe := l.redis.Pipeline()
		for n := from; n < from+10_000; n++ {
			raw := good
			if n%3 == 1 { // a third has failed
				raw = bad
			}
			pipe.Set(l.Context(), prefix+largeKey(n).String(), raw, 24*time.Hour)
		}
		_, err := pipe.Exec(l.Context())
		l.must(err)
	}
	l.Logf("%d records in %v", l.redis.DBSize(l.Context()).Val(), time.Since(began).Round(time.Second))
}

// explains asks for an ID without a scope, of a store that is warm.
func (l *large) explains() {
	var took []time.Duration
	for i := range 11 {
		var out, log bytes.Buffer
		began := time.Now()
		args := append([]string{"explain", fmt.Sprint("order-", 1_000_000+i)}, l.flags...)
		status := run(l.Context(), args, nil, &out, &log)
		took = append(took, time.Since(began))
		if status != 0 || !strings.Contains(out.String(), "billing:charge") {
			l.Fatalf("status %d: %s%s", status, &out, &log)
		}
	}
	slices.Sort(took)
	l.within("explain without a scope, median of 11", took[5], 100*time.Millisecond)
}

// letter is the dead letter of a failure.
func (l *large) letter(n int) deadletters.Letter {
	reason := fmt.Sprintf("card service: POST /charges/%d: 503", n)
	return consumertest.DeadLetter(largeKey(3*n+1), l.sample.Fence, reason)
}

func (l *large) onNATS() {
	server := natstest.Start(l.T)
	js := server.JetStream(nats.MaxReconnects(-1))
	_, err := js.CreateStream(l.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}})
	l.must(err)
	began := time.Now()
	for n := range largeLetters {
		letter := l.letter(n)
		msg := &nats.Msg{Subject: "dead", Data: letter.Payload, Header: nats.Header{}}
		for name, value := range letter.Header {
			msg.Header.Set(name, value)
		}
		_, err := js.PublishMsgAsync(msg)
		l.must(err)
		if n%2000 == 0 {
			<-js.PublishAsyncComplete()
		}
	}
	<-js.PublishAsyncComplete()
	l.Logf("%d letters in %v", largeLetters, time.Since(began).Round(time.Second))
	l.mount("--nats", server.URL())
}

func (l *large) onKafka() {
	server := kafkatest.Start(l.T)
	server.CreateTopic("dead", 3)
	cl := server.Client(kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	began := time.Now()
	for n := range largeLetters {
		letter := l.letter(n)
		record := &kgo.Record{Topic: "dead", Value: letter.Payload}
		for name, value := range letter.Header {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		cl.Produce(l.Context(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				l.Error(err)
			}
		})
	}
	l.must(cl.Flush(l.Context()))
	l.Logf("%d letters in %v", largeLetters, time.Since(began).Round(time.Second))
	l.mount("--kafka", server.Addr)
}

// mount serves a console as the command does, for people who may do everything.
func (l *large) mount(flags ...string) {
	a, cmd := &app{log: io.Discard}, &cobra.Command{}
	l.Cleanup(a.close)
	a.settings.flags(cmd.Flags())
	l.must(cmd.ParseFlags(append(slices.Clone(l.flags), flags...)))
	s := &consoleServer{app: a, flags: cmd.Flags(), rate: 100, logger: quiet, dead: []string{"dead"}}
	config, err := s.config(l.Context())
	l.must(err)
	config.Authorize = func(r *http.Request, _ console.Action) (string, error) { return r.Header.Get("Who"), nil }
	config.Hosts = []string{"*"}
	c, err := console.New(config)
	l.must(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx)
	}()
	server := httptest.NewServer(c.Handler())
	l.Cleanup(func() {
		stop()
		<-ended
		server.Close()
	})
	l.url, l.listed = server.URL+"/", "failures?letters=dead"
}

// A person is a browser.
type person struct {
	*large
	name    string
	browser *http.Client
}

func (l *large) person(name string) *person {
	jar, err := cookiejar.New(nil)
	l.must(err)
	return &person{l, name, &http.Client{Jar: jar, Timeout: time.Minute}}
}

func (p *person) ask(method, page string, form url.Values) (body string, took time.Duration) {
	began := time.Now()
	r, err := http.NewRequestWithContext(p.Context(), method, p.url+page, strings.NewReader(form.Encode()))
	p.must(err)
	r.Header.Set("Who", p.name)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := p.browser.Do(r)
	p.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	p.must(err)
	if answer.StatusCode >= http.StatusInternalServerError {
		p.failures.Add(1)
		p.Logf("%s %s: status %d: %s", method, page, answer.StatusCode, leadText.Find(text))
	}
	took = time.Since(began)
	for most := p.slowest.Load(); int64(took) > most && !p.slowest.CompareAndSwap(most, int64(took)); {
		most = p.slowest.Load()
	}
	return string(text), took
}

var leadText = regexp.MustCompile(`<p class="lead">.*`)

var tokenField = regexp.MustCompile(`name="token" value="([^"]+)"`)

// letters measures pages, plans and a crowd.
func (l *large) letters() {
	ada := l.person("ada")
	ada.ask(http.MethodGet, "", nil)
	body, took := ada.ask(http.MethodGet, l.listed, nil)
	if strings.Count(body, `name="at"`) != 50 {
		l.Fatalf("the first page is\n%.3000s", body)
	}
	l.within("first page of letters", took, 300*time.Millisecond)
	next := regexp.MustCompile(`id="next-letters" class="button" href="failures\?([^"#]+)`).FindStringSubmatch(body)
	if next == nil {
		l.Fatal("there is no next page")
	}
	_, took = ada.ask(http.MethodGet, "failures?"+strings.ReplaceAll(next[1], "&amp;", "&"), nil)
	l.within("second page", took, 300*time.Millisecond)
	_, took = ada.ask(http.MethodGet, l.listed+"&letter=nobody", nil)
	l.within("page of a search that finds nothing", took, 2*time.Second)
	token := tokenField.FindStringSubmatch(body)[1]
	plan := url.Values{"do": {"redrive"}, "letters": {"dead"}, "of": {"list"}, "token": {token}}
	body, took = ada.ask(http.MethodPost, "plan", plan)
	l.within("plan of all letters", took, 10*time.Second)
	shown := regexp.MustCompile(`all letters in dead: ([0-9,]+) letters`).FindStringSubmatch(body)
	said := strings.Contains(body, `id="unseen-letters"`)
	if shown == nil {
		l.Fatalf("the plan is\n%.3000s", body)
	}
	l.Logf("its page has %d KB, shows %s letters, and says what it has not seen: %t", len(body)/1000, shown[1], said)
	if len(body) > 200_000 || !said && shown[1] != "1,000,000" {
		l.Error("the plan's page is too large, or says less than it should")
	}
	l.crowd()
}

// crowd has twelve people look at everything, and plan.
func (l *large) crowd() {
	l.slowest.Store(0)
	l.failures.Store(0)
	var all sync.WaitGroup
	var asked atomic.Int64
	end := time.Now().Add(30 * time.Second)
	for i := range 12 {
		p := l.person(fmt.Sprint("person-", i))
		all.Go(func() {
			for n := i; time.Now().Before(end); n++ {
				page := []string{
					"", l.listed, "failures", "messages", "messages?id=order-7", "health", "failures?list=1",
					l.listed + "&reason=" + strconv.Itoa(n),
				}[n%8]
				body, _ := p.ask(http.MethodGet, page, nil)
				if token := tokenField.FindStringSubmatch(body); token != nil && n%16 == 1 {
					p.ask(http.MethodPost, "plan", url.Values{
						"do": {"redrive"}, "letters": {"dead"}, "of": {"list"}, "token": token[1:],
					})
				}
				asked.Add(1)
			}
		})
	}
	all.Wait()
	l.Logf("twelve people: %d pages, %d of them 5xx, the slowest took %v", asked.Load(), l.failures.Load(),
		time.Duration(l.slowest.Load()).Round(time.Millisecond))
	if l.failures.Load() > 0 {
		l.Error("pages failed")
	}
}

// cpu is what Redis has taken, in seconds.
func (l *large) cpu() float64 {
	info := l.redis.Info(l.Context(), "cpu").Val()
	sum := 0.0
	for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
		_, rest, _ := strings.Cut(info, name)
		value, _, _ := strings.Cut(rest, "\r\n")
		n, _ := strconv.ParseFloat(value, 64)
		sum += n
	}
	return sum
}

// refreshes compares what Redis takes while somebody looks, and while somebody refreshes four times a second.
func (l *large) refreshes() {
	l.mountAlone()
	ada := l.person("ada")
	const long = 3 * time.Minute
	measure := func(do func(token string)) float64 {
		before := l.cpu()
		for end := time.Now().Add(long); time.Now().Before(end); pace.Sleep(l.Context(), 250*time.Millisecond) {
			body, _ := ada.ask(http.MethodGet, "failures", nil)
			do(tokenField.FindStringSubmatch(body)[1])
		}
		return (l.cpu() - before) / long.Seconds()
	}
	without := measure(func(string) {})
	with := measure(func(token string) {
		ada.ask(http.MethodPost, "refresh", url.Values{"what": {"failures"}, "in": {"records"}, "token": {token}})
	})
	l.Logf("Redis takes %.3f cores while somebody looks, and %.3f while somebody refreshes", without, with)
	if with-without > 0.05 {
		l.Errorf("refreshing costs Redis %.3f cores more", with-without)
	}
}

// mountAlone serves a console of the store alone.
func (l *large) mountAlone() {
	server := natstest.Start(l.T)
	_, err := server.JetStream().CreateStream(l.Context(),
		jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}})
	l.must(err)
	l.mount("--nats", server.URL())
}
