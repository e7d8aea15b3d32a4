package dynamotest

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A Fault is what a [Proxy] does to one exchange, a request and its reply. The zero value does nothing.
type Fault struct {
	// DelayRequest delays the request on its way to the server. The request arrives even if the client has gone.
	DelayRequest time.Duration

	// DropReply closes the client's connection instead of giving it the reply: the server has done the work.
	DropReply bool

	// DelayReply delays the reply.
	DelayReply time.Duration

	// Refuse answers with this error of DynamoDB instead of asking the server, such as "ThrottlingException".
	Refuse string

	// DateBy moves the Date of the reply.
	DateBy time.Duration
}

// A Proxy is an HTTP proxy before a server, and counts what it did.
type Proxy struct {
	URL string

	target    string
	keyName   atomic.Pointer[string]
	fault     atomic.Pointer[func(operation string) Fault]
	transport *http.Transport

	exchanges, dropped, late, delayed, added atomic.Int64
}

// StartProxy starts a proxy before an endpoint, which works faithfully until told otherwise, and stops when the test
// ends.
func StartProxy(t testing.TB, endpoint string) *Proxy {
	t.Helper()
	p := &Proxy{target: endpoint, transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	server := httptest.NewServer(http.HandlerFunc(p.serve))
	p.URL = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		p.transport.CloseIdleConnections()
	})
	return p
}

// Inject sets what happens to each exchange from now on; nil: nothing. The function gets the name of the operation,
// such as "PutItem", and is called concurrently.
func (p *Proxy) Inject(fault func(operation string) Fault) {
	if fault == nil {
		p.fault.Store(nil)
		return
	}
	p.fault.Store(&fault)
}

// AddOldItems adds to refusals of conditional puts the item that is there, as DynamoDB does and dynalite does not. The
// tables have the one key attribute that is named.
func (p *Proxy) AddOldItems(keyName string) { p.keyName.Store(&keyName) }

// Exchanges is how many requests came so far.
func (p *Proxy) Exchanges() int { return int(p.exchanges.Load()) }

// Dropped is how many replies were dropped so far.
func (p *Proxy) Dropped() int { return int(p.dropped.Load()) }

// Late is how many requests were delayed so far.
func (p *Proxy) Late() int { return int(p.late.Load()) }

// Delayed is how many replies were delayed so far.
func (p *Proxy) Delayed() int { return int(p.delayed.Load()) }

// Added is how many items were added to refusals.
func (p *Proxy) Added() int { return int(p.added.Load()) }

const targetHeader = "X-Amz-Target"

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	request, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.exchanges.Add(1)
	service, operation, _ := strings.Cut(r.Header.Get(targetHeader), ".")
	var f Fault
	if fault := p.fault.Load(); fault != nil {
		f = (*fault)(operation)
	}
	if f.Refuse != "" {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]string{
			"__type": "com.amazonaws.dynamodb.v20120810#" + f.Refuse, "message": "refused by the proxy",
		})
		return
	}
	if f.DelayRequest > 0 {
		p.late.Add(1)
		<-time.After(f.DelayRequest)
	}
	status, header, reply, err := p.forward(r, request)
	if err == nil && operation == "PutItem" && status == http.StatusBadRequest {
		reply, err = p.addOldItem(r, service, request, reply)
	}
	if f.DropReply {
		p.dropped.Add(1)
	}
	if err != nil || f.DropReply {
		panic(http.ErrAbortHandler)
	}
	if f.DelayReply > 0 {
		p.delayed.Add(1)
		<-time.After(f.DelayReply)
	}
	for name, values := range header {
		w.Header()[name] = values
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		w.Header().Set("Date", date.Add(f.DateBy).UTC().Format(http.TimeFormat))
	}
	w.Header().Set("X-Amz-Crc32", strconv.FormatUint(uint64(crc32.ChecksumIEEE(reply)), 10))
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	w.WriteHeader(status)
	_, _ = w.Write(reply)
}

// forward sends a request to the server, also if the client has gone.
func (p *Proxy) forward(r *http.Request, body []byte) (status int, h http.Header, reply []byte, err error) {
	ctx := context.WithoutCancel(r.Context())
	forwarded, err := http.NewRequestWithContext(ctx, r.Method, p.target+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	forwarded.Header = r.Header.Clone()
	forwarded.Header.Del("Accept-Encoding") // the transport adds its own
	answer, err := p.transport.RoundTrip(forwarded)
	if err != nil {
		return 0, nil, nil, err
	}
	defer answer.Body.Close()
	reply, err = io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header, reply, err
}

// addOldItem reads the item that a put was refused for.
func (p *Proxy) addOldItem(r *http.Request, service string, request, reply []byte) ([]byte, error) {
	keyName := p.keyName.Load()
	if keyName == nil || !bytes.Contains(reply, []byte("ConditionalCheckFailedException")) {
		return reply, nil
	}
	var put struct {
		TableName string
		Item      map[string]json.RawMessage
	}
	if err := json.Unmarshal(request, &put); err != nil {
		return nil, err
	}
	get, err := json.Marshal(map[string]any{
		"TableName": put.TableName, "ConsistentRead": true,
		"Key": map[string]json.RawMessage{*keyName: put.Item[*keyName]},
	})
	if err != nil {
		return nil, err
	}
	asked := r.Clone(r.Context())
	asked.Header.Set(targetHeader, service+".GetItem")
	_, _, found, err := p.forward(asked, get)
	if err != nil {
		return nil, err
	}
	var got, refused map[string]json.RawMessage
	if err := json.Unmarshal(found, &got); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(reply, &refused); err != nil {
		return nil, err
	}
	if got["Item"] != nil {
		p.added.Add(1)
		refused["Item"] = got["Item"]
	}
	return json.Marshal(refused)
}
