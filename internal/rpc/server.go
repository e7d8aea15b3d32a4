package rpc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/internal/ids"
	"github.com/oncemill/oncemill/internal/marks"
	"github.com/oncemill/oncemill/internal/pace"
	"github.com/oncemill/oncemill/internal/requests"
)

// Settings are the configuration that packages for libraries have in common. A Config of theirs has the same fields,
// explained and with the library's own type of codes, so that it converts to Settings.
type Settings[Code ~uint32] struct {
	Account   func(context.Context) (string, error)
	Group     string
	KeyField  protoreflect.ExtensionType
	Required  func(procedure string) bool
	Pass      func(procedure string) bool
	Release   func(Code) bool
	Metadata  []string
	MaxWait   time.Duration
	WaitLimit *oncemill.WaitLimit
}

// Coded returns settings for codes of another type.
func Coded[To, From ~uint32](s Settings[From]) Settings[To] {
	to := Settings[To]{
		Account: s.Account, Group: s.Group, KeyField: s.KeyField, Required: s.Required, Pass: s.Pass,
		Metadata: s.Metadata, MaxWait: s.MaxWait, WaitLimit: s.WaitLimit,
	}
	if s.Release != nil {
		to.Release = func(code To) bool { return s.Release(From(code)) }
	}
	return to
}

// ErrClientGone is the cause of a handler's cancelled context when its client has been gone for 30 s.
var ErrClientGone = errors.New("rpc: the client has gone")

// A Server runs calls once for each key. It is safe for concurrent use.
type Server struct {
	guard  *oncemill.Guard
	set    Settings[uint32]
	fields map[string]string // of the requests that hold their key
	most   int               // bytes of a stored reply
	log    *slog.Logger      // never gets anything of a message
	inbox  bool
	linger time.Duration

	strange, foreign pace.Limiter // of lines about each call
}

// NewServer checks the settings. The error names the one that is wrong.
func NewServer[Code ~uint32](guard *oncemill.Guard, config Settings[Code]) (*Server, error) {
	s := Coded[uint32](config)
	if guard == nil {
		return nil, errors.New("guard is nil")
	}
	policy := guard.Policy()
	if err := requests.CheckPolicy(policy); err != nil {
		return nil, err
	}
	s.Group = cmp.Or(s.Group, "rpc")
	if s.Required == nil {
		s.Required = func(procedure string) bool { _, harmless := marked(procedure); return !harmless }
	}
	if s.Pass == nil {
		s.Pass = aboutTheServer
	}
	if s.Metadata == nil {
		s.Metadata = []string{"etag", "last-modified", "link", "location", "retry-after"}
	}
	probe := dedupstore.Key{Tenant: "t", Group: s.Group, Handler: "h", ID: "i"}
	switch {
	case s.Account == nil:
		return nil, errors.New("Config.Account is nil: say whose keys they are, or use SingleTenant")
	case probe.Validate() != nil:
		return nil, fmt.Errorf("Config.Group is %q, want 1 to %d bytes of UTF-8 without control characters",
			s.Group, dedupstore.MaxScopePart)
	case s.MaxWait < 0:
		return nil, fmt.Errorf("Config.MaxWait is %v, want at least 0", s.MaxWait)
	}
	fields, err := keyFields(s.KeyField)
	if err != nil {
		return nil, err
	}
	return &Server{
		guard: guard, set: s, fields: fields, most: policy.MaxResultBytes, log: policy.Logger,
		inbox: guard.Transacts(), linger: requests.Linger,
	}, nil
}

// SetLinger sets how long runs go on after their clients have gone, for tests.
func (s *Server) SetLinger(d time.Duration) { s.linger = d }

// aboutTheServer knows the services that say how the server is.
func aboutTheServer(procedure string) bool {
	return strings.HasPrefix(procedure, "/grpc.health.") || strings.HasPrefix(procedure, "/grpc.reflection.")
}

// Passes reports whether a call goes past the guard.
func (s *Server) Passes(procedure string) bool {
	return NoSideEffects(procedure) || s.set.Pass(procedure)
}

// RefuseStream is the reply to a stream that does not pass.
func (s *Server) RefuseStream() *Reply { return refusal(stream, "") }

// A Handler runs the handler of a call, and says what the library would make of it. The error is the handler's own.
// Coded says that it has a code, so that its status is an answer.
type Handler func(ctx context.Context) (reply *Reply, coded bool, err error)

// Call answers a call. A nil reply means that the handler's own result, that of its last run, is the answer. Keys are
// the values of the metadata that has the key. A panic of the handler goes on.
func (s *Server) Call(ctx context.Context, procedure string, keys []string, request any, handler Handler) *Reply {
	x := &exchange{s: s, handler: handler}
	if reply := x.prepare(ctx, procedure, keys, request); reply != nil {
		return reply
	}
	reply := x.run(ctx)
	if x.panics != nil && reply == nil {
		panic(x.panics.Value)
	}
	return reply
}

// An exchange is one call on its way to a reply.
type exchange struct {
	s       *Server
	handler Handler
	call    oncemill.Call
	made    bool // the key, for this call: nobody else can ask for its response
	request proto.Message
	content []byte // of the request
	runs    int    // of the handler

	reply    *Reply               // of the last run that this call made; nil: none
	replaced bool                 // it is not the handler's
	failed   error                // what that run returned
	panics   *requests.PanicError // the handler's, in that run; nil: none
}

const sayEvery = time.Minute

// prepare finds the key of a call. A reply means that nothing has begun.
func (x *exchange) prepare(ctx context.Context, procedure string, keys []string, request any) *Reply {
	s := x.s
	message, ok := request.(proto.Message)
	if !ok {
		if s.foreign.Due(sayEvery) {
			s.log.ErrorContext(ctx, "rpc: a request is no message of protobuf: its content cannot be "+
				"compared; there may be more",
				"procedure", procedure)
		}
		return refusal(requests.Internal, "")
	}
	id, wrong := requests.Key(keys)
	if path := s.fields[procedure]; path != "" {
		if value := fieldValue(message.ProtoReflect(), path); value != "" {
			id, wrong = value, requests.PlainKeyProblem(value)
		}
	}
	x.made = id == ""
	switch {
	case wrong != "":
		return refusal(malformed, " "+wrong)
	case x.made && s.set.Required(procedure):
		return refusal(missing, "")
	case x.made:
		id = ids.New()
	}
	account, err := s.set.Account(ctx)
	if err != nil || account == "" {
		if s.strange.Due(sayEvery) { // anybody can cause it, as often as they like
			s.log.WarnContext(ctx, "rpc: no account for a call; there may be more", "error", err)
		}
		return refusal(noAccount, "")
	}
	x.request = message
	if x.content, err = (proto.MarshalOptions{Deterministic: true}).Marshal(message); err != nil {
		return refusal(malformed, ": the request cannot be read")
	}
	x.call = oncemill.Call{
		Key: dedupstore.Key{
			Tenant: requests.ScopePart(account), Group: s.set.Group, Handler: requests.ScopePart(procedure), ID: id,
		},
		Fingerprint: fingerprint(procedure, x.content), MaxWait: s.set.MaxWait, WaitLimit: s.set.WaitLimit,
	}
	return nil
}

// fingerprint identifies what a call asks for. The length before the procedure makes the boundary count.
func fingerprint(procedure string, content []byte) dedupstore.Fingerprint {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%d:%s", len(procedure), procedure)
	sum.Write(content)
	return dedupstore.Fingerprint{Scheme: "rpc-sha256", Sum: base64.RawURLEncoding.EncodeToString(sum.Sum(nil))}
}

func (x *exchange) run(ctx context.Context) *Reply {
	ctx, begin, end := requests.Detach(ctx, x.s.linger, ErrClientGone)
	defer end()
	res, err := x.s.guard.Run(ctx, x.call, func(ctx context.Context) (o dedupstore.Outcome, err error) {
		if !begin() {
			return o, oncemill.NoEffect(context.Cause(ctx))
		}
		if x.runs++; x.runs > 1 { // a run before, which the database undid, may have changed it
			proto.Reset(x.request)
			if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(x.content, x.request); err != nil {
				return o, oncemill.NoEffect(err)
			}
		}
		if o, x.failed = x.handle(ctx); x.failed != nil {
			x.failed = &handlerError{x.failed}
		}
		if x.made {
			o.Result = nil
		}
		return o, x.failed
	})
	if res.Publication != nil { // an outcome of another program under this key
		res.Publication.Abandon()
	}
	if err != nil {
		return x.undone(ctx, err)
	}
	return x.done(ctx, res)
}

// handlerError is what a handler's run ended with. Its address tells it from others: errors may not be comparable.
type handlerError struct{ error }

// Unwrap returns the handler's error.
func (e *handlerError) Unwrap() error { return e.error }

// codeError tells the guard that a handler answered with a code.
type codeError struct {
	code uint32
	err  error
}

func (e *codeError) Error() string { return fmt.Sprintf("the handler answered with code %d", e.code) }

// Unwrap returns the handler's error, in which an inbox sees its database's.
func (e *codeError) Unwrap() error { return e.err }

// handle runs the handler once, and makes the outcome from its reply.
func (x *exchange) handle(ctx context.Context) (o dedupstore.Outcome, err error) {
	s := x.s
	coded, err := x.protected(ctx)
	if x.panics != nil {
		return o, oncemill.RetryAfter(0, x.panics)
	}
	var whole bool
	if o.Result, whole = x.reply.encode(s.most, s.set.Metadata); !whole && s.inbox {
		x.reply, x.replaced = refusal(refused, ""), true
		o.Result, _ = x.reply.encode(s.most, nil)
		if err == nil {
			return o, oncemill.Permanent(&codeError{internal, errors.New("the response cannot be kept")})
		}
	}
	if err == nil {
		return o, nil
	}
	if !coded || steers(err) || ctx.Err() != nil && gaveUp(x.reply.Status.Code) {
		s.log.WarnContext(ctx, "rpc: the handler failed", "key", x.call.Key.String(), "error", err)
		return o, err
	}
	code := x.reply.Status.Code
	answer := &codeError{code, err}
	switch {
	case s.set.Release != nil && s.set.Release(code):
		return o, requests.Released(answer, ServerError(code))
	case !ServerError(code) && !s.inbox:
		return o, nil
	}
	return o, oncemill.Permanent(answer) // in an inbox any error rolls back
}

// steers reports whether an error says itself what becomes of the run. It looks where the guard does: not into errors
// of a nested guard, which speak of another run.
func steers(err error) bool {
	_, marked := marks.Find[marks.Mark, *oncemill.Error](err)
	return marked || marks.Spares[*oncemill.Error](err)
}

// gaveUp reports whether a code may be that of a context which has ended.
func gaveUp(code uint32) bool { return code == canceled || code == deadlineExceeded }

// protected runs the handler, and keeps its panic.
func (x *exchange) protected(ctx context.Context) (coded bool, err error) {
	x.reply, x.replaced, x.panics = &Reply{}, false, nil
	returned := false
	defer func() {
		if returned {
			return
		}
		v, stack := recover(), debug.Stack()
		x.panics = &requests.PanicError{PanicError: &oncemill.PanicError{Value: v, Stack: stack}}
		x.s.log.ErrorContext(ctx, "rpc: the handler panicked",
			"key", x.call.Key.String(), "error", x.panics, "stack", string(stack))
	}()
	x.reply, coded, err = x.handler(ctx)
	returned = true
	return coded, err
}

// own is what the run of this call was.
func (x *exchange) own() requests.Run {
	return requests.Run{Ran: x.reply != nil, Panicked: x.panics != nil, Inbox: x.s.inbox, Failed: x.failed}
}

// done answers a call whose key has an outcome.
func (x *exchange) done(ctx context.Context, res oncemill.Result) *Reply {
	o, own := res.Outcome, x.own()
	switch {
	case own.Counts(res, x.made):
		return x.respond()
	case len(o.Result) == 0:
		x.drop(ctx, o.Reason)
		reply := refusal(own.Without(o), "")
		if res.Duplicate {
			reply = reply.replayed()
		}
		return reply
	}
	reply, err := decode(o.Result)
	switch {
	case err != nil:
		x.s.log.ErrorContext(ctx, "rpc: a stored response cannot be read", "key", x.call.Key.String(), "error", err)
		if o.Kind != dedupstore.Succeeded {
			return refusal(requests.Internal, "")
		}
		return refusal(requests.NotKept, "").replayed()
	case reply == nil:
		return refusal(requests.NotKept, "").replayed()
	}
	return reply.replayed()
}

// respond answers with the result of this call's run: nil, unless it was replaced.
func (x *exchange) respond() *Reply {
	if x.replaced {
		return x.reply
	}
	return nil
}

// undone answers a call whose key has no known outcome.
func (x *exchange) undone(ctx context.Context, err error) *Reply {
	answer := x.own().Undone(err)
	switch {
	case answer.Own && answer.Again && x.panics == nil && x.reply.Status != nil:
		if _, said := x.reply.Status.retryAfter(); !said {
			return x.reply.after(answer.Retry)
		}
		return x.respond()
	case answer.Own:
		return x.respond()
	case answer.Code == requests.Internal:
		x.s.log.ErrorContext(ctx, "rpc: the guard refuses a call", "error", err)
	}
	x.drop(ctx, err)
	reply := refusal(answer.Code, "")
	if answer.Again {
		reply = reply.after(answer.Retry)
	}
	return reply
}

// drop tells operators that nobody gets the handler's response.
func (x *exchange) drop(ctx context.Context, why any) {
	if x.reply != nil {
		x.s.log.WarnContext(ctx, "rpc: a response is not sent, because its run does not count",
			"key", x.call.Key.String(), "error", why)
	}
}
