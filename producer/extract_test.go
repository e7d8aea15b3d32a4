package producer_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
)

const someUUID = "0198c5b0-5b3c-7c0e-8f00-1a2b3c4d5e6f"

type header = producer.Header

func TestExtract_FindsIDsInOrder(t *testing.T) {
	t.Parallel()
	structured := header{"Content-Type": "application/cloudevents+json; charset=utf-8"}
	for _, tc := range []struct {
		name   string
		in     producer.Incoming
		id     string
		source producer.Source
	}{
		{"ours", producer.Incoming{Header: header{"oncemill-id": "o1"}}, "o1", "message_id"},
		{"ours, as another client spells it", producer.Incoming{Header: header{"Oncemill-Id": "o1"}}, "o1", "message_id"},
		{"ours comes first", producer.Incoming{Header: header{"oncemill-id": "o1", "ce_id": "c", "ce_source": "s", "Nats-Msg-Id": "n"}, UUID: "u"}, "o1", "message_id"},
		{"UUID", producer.Incoming{UUID: "o1", Topic: "orders"}, "o1", "watermill_uuid"},
		{"CloudEvent in Kafka", producer.Incoming{Header: header{"ce_id": "A-1", "ce_source": "/shop"}, UUID: "u"}, "~ce,/shop,A-1", "ce_id"},
		{"CloudEvent in NATS", producer.Incoming{Header: header{"ce-id": "A-1", "ce-source": "/shop"}}, "~ce,/shop,A-1", "ce_id"},
		{"structured CloudEvent", producer.Incoming{Header: structured, Payload: []byte(`{"source":"/shop","ID":"no","data":{"id":"no"},"id":"A-1"}`)}, "~ce,/shop,A-1", "ce_id"},
		{"Nats-Msg-Id", producer.Incoming{Header: header{"Nats-Msg-Id": "n1", "Idempotency-Key": "k"}, Topic: "orders"}, "~nats,orders,n1", "nats_msg_id"},
		{"quoted key", producer.Incoming{Header: header{"Idempotency-Key": `"a \"b\" \\";v=1`}, Topic: "pay"}, `~idem,pay,a%20"b"%20\`, "idempotency_key"},
		{"bare key", producer.Incoming{Header: header{"idempotency-key": "8e03978e"}, Topic: "pay"}, "~idem,pay,8e03978e", "idempotency_key"},
		{"quoted key with spaces around it", producer.Incoming{Header: header{"Idempotency-Key": ` "8e03978e" `}, Topic: "pay"}, "~idem,pay,8e03978e", "idempotency_key"},
		{"bare key with spaces around it", producer.Incoming{Header: header{"Idempotency-Key": " 8e03978e "}, Topic: "pay"}, "~idem,pay,8e03978e", "idempotency_key"},
		{"Debezium", producer.Incoming{Header: header{"id": someUUID}, Topic: "outbox.event.order"}, "~dbz,outbox.event.order," + someUUID, "debezium_id"},
		{"a metadata id is not Debezium's", producer.Incoming{Header: header{"id": "customer 7"}, UUID: "u1"}, "u1", "watermill_uuid"},
		{"foreign ID that was stamped", producer.Incoming{Header: header{"oncemill-id": "~ce,/shop,A-1"}}, "~ce,/shop,A-1", "message_id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := producer.Extract(tc.in)
			if err != nil || got.ID != tc.id || got.Source != tc.source {
				t.Errorf("got %+v, %v; want %q from %s", got, err, tc.id, tc.source)
			}
		})
	}
}

func TestExtract_NothingIsErrNoID(t *testing.T) {
	t.Parallel()
	for _, in := range []producer.Incoming{
		{},
		{Header: header{"color": "blue", "content-type": "application/json"}, Topic: "orders", Position: "3/17", Payload: []byte(`{"id":"x","source":"y"}`)},
	} {
		if got, err := producer.Extract(in); !errors.Is(err, producer.ErrNoID) || got.ID != "" {
			t.Errorf("%+v: got %+v, %v, want ErrNoID", in, got, err)
		}
	}
}

func TestExtract_UnusableIDIsNamedAndNotSkipped(t *testing.T) {
	t.Parallel()
	structured := header{"content-type": "application/cloudevents+json"}
	for _, tc := range []struct {
		name  string
		in    producer.Incoming
		field string
	}{
		{"empty", producer.Incoming{Header: header{"oncemill-id": ""}}, "header oncemill-id"},
		{"oversized", producer.Incoming{Header: header{"oncemill-id": long}}, "header oncemill-id"},
		{"binary", producer.Incoming{Header: header{"oncemill-id": "\xff\xfe"}}, "header oncemill-id"},
		{"control character", producer.Incoming{Header: header{"oncemill-id": "a\nb"}}, "header oncemill-id"},
		{"space around", producer.Incoming{Header: header{"oncemill-id": " a"}}, "header oncemill-id"},
		{"looks foreign", producer.Incoming{Header: header{"oncemill-id": "~ce,a"}}, "header oncemill-id"},
		{"two spellings", producer.Incoming{Header: header{"Oncemill-Id": "a", "ONCEMILL-ID": "b"}}, "header oncemill-id"},
		{"UUID", producer.Incoming{Header: header{}, UUID: "\x00"}, "Watermill UUID"},
		{"ce_id alone", producer.Incoming{Header: header{"ce_id": "a"}}, "header ce_source"},
		{"ce-source alone", producer.Incoming{Header: header{"ce-source": "a"}}, "header ce-id"},
		{"empty ce_id", producer.Incoming{Header: header{"ce_id": "", "ce_source": "s"}}, "header ce_id"},
		{"oversized ce_source", producer.Incoming{Header: header{"ce_id": "a", "ce_source": long}}, "header ce_source"},
		{"two content types", producer.Incoming{Header: header{"Content-Type": "application/cloudevents+json", "CONTENT-TYPE": "text/plain"}, Payload: []byte(`{"source":"s","id":"a"}`)}, "header content-type"},
		{"structured, not JSON", producer.Incoming{Header: structured, Payload: []byte("{")}, "payload"},
		{"structured, an array", producer.Incoming{Header: structured, Payload: []byte("[]")}, "payload"},
		{"structured, without id", producer.Incoming{Header: structured, Payload: []byte(`{"source":"s"}`)}, "payload member id"},
		{"structured, empty source", producer.Incoming{Header: structured, Payload: []byte(`{"source":"","id":"a"}`)}, "payload member source"},
		{"structured, id a number", producer.Incoming{Header: structured, Payload: []byte(`{"source":"s","id":1}`)}, "payload member id"},
		{"structured, id null", producer.Incoming{Header: structured, Payload: []byte(`{"source":"s","id":null}`)}, "payload member id"},
		{"structured, id not UTF-8", producer.Incoming{Header: structured, Payload: []byte("{\"source\":\"s\",\"id\":\"M\xfcller\"}")}, "payload member id"},
		{"structured, source not UTF-8", producer.Incoming{Header: structured, Payload: []byte("{\"source\":\"/\xfc\",\"id\":\"1\"}")}, "payload member source"},
		{"structured, half a surrogate pair", producer.Incoming{Header: structured, Payload: []byte(`{"source":"s","id":"\ud800"}`)}, "payload member id"},
		{"empty Nats-Msg-Id", producer.Incoming{Header: header{"Nats-Msg-Id": ""}}, "header Nats-Msg-Id"},
		{"binary topic", producer.Incoming{Header: header{"Nats-Msg-Id": "a"}, Topic: "\xff"}, "Incoming.Origin"},
		{"empty string as key", producer.Incoming{Header: header{"Idempotency-Key": `""`}}, "header Idempotency-Key"},
		{"key of spaces", producer.Incoming{Header: header{"Idempotency-Key": "  "}}, "header Idempotency-Key"},
		{"key without end", producer.Incoming{Header: header{"Idempotency-Key": `"abc`}}, "header Idempotency-Key"},
		{"key with bad escape", producer.Incoming{Header: header{"Idempotency-Key": `"a\n"`}}, "header Idempotency-Key"},
		{"key with more", producer.Incoming{Header: header{"Idempotency-Key": `"a" b`}}, "header Idempotency-Key"},
		{"id that is no UUID", producer.Incoming{Header: header{"id": "42"}}, "header id"},
		{"empty id", producer.Incoming{Header: header{"id": ""}}, "header id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.field != "Watermill UUID" && tc.field != "header id" {
				tc.in.UUID = "must not be taken instead"
			}
			got, err := producer.Extract(tc.in)
			wantInvalid(t, err, tc.field)
			if got != (producer.Identity{}) {
				t.Errorf("got %+v beside the error", got)
			}
		})
	}
}

func TestExtract_DifferentIdentitiesNeverCollide(t *testing.T) {
	t.Parallel()
	ce := func(source, id string) producer.Incoming {
		return producer.Incoming{Header: header{"ce_id": id, "ce_source": source}}
	}
	half := strings.Repeat("y", 300)
	ins := []producer.Incoming{
		ce("a", "b,c"), ce("a,b", "c"), ce("a%2Cb", "c"), ce("a b", "c"), ce("a%20b", "c"), ce("b", "a"),
		ce(half, half), ce(half, half+"1"), ce(half+"1", half), ce(half+","+half[:50], half),
		{Header: header{"oncemill-id": "a,b,c"}}, {Header: header{"oncemill-id": "ce,a,c"}}, {UUID: "c"},
		{Header: header{"Nats-Msg-Id": "c"}, Topic: "a"}, {Header: header{"Nats-Msg-Id": "c"}, Topic: "b"},
		{Header: header{"Idempotency-Key": "c"}, Topic: "a"}, {Header: header{"Nats-Msg-Id": someUUID}},
		{Header: header{"id": someUUID}, Topic: "a"}, {Header: header{"oncemill-id": someUUID}},
	}
	seen := map[string]int{}
	for i, in := range ins {
		got, err := producer.Extract(in)
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if other, ok := seen[got.ID]; ok {
			t.Errorf("%d and %d have one ID, %q", i, other, got.ID)
		}
		if len(got.ID) > dedupstore.MaxID {
			t.Errorf("%d: the ID has %d bytes", i, len(got.ID))
		}
		seen[got.ID] = i
	}
}

func TestExtract_BinaryAndStructuredCloudEventsAreOneMessage(t *testing.T) {
	t.Parallel()
	binary, err := producer.Extract(producer.Incoming{Header: header{"ce_id": "é 1", "ce_source": "/a,b"}})
	if err != nil {
		t.Fatal(err)
	}
	structured, err := producer.Extract(producer.Incoming{
		Header: header{"content-type": "application/cloudevents+json"}, Payload: []byte(`{"id":"\u00e9 1","source":"/a,b"}`),
	})
	if err != nil || structured != binary {
		t.Errorf("structured %+v, %v; binary %+v", structured, err, binary)
	}
}

func TestExtract_ByChoice(t *testing.T) {
	t.Parallel()
	in := producer.Incoming{Header: header{"Webhook-Id": "msg_1"}, Topic: "hooks", Position: "3/1742", UUID: "u"}
	for _, tc := range []struct {
		extractor producer.Extractor
		want      producer.Identity
	}{
		{producer.ExtractHeader("webhook-id"), producer.Identity{ID: "~hdr,webhook-id,hooks,msg_1", Source: "header"}},
		{producer.ExtractPosition, producer.Identity{ID: "~pos,hooks,3/1742", Source: "position"}},
		{func(producer.Incoming) (producer.Identity, error) {
			return producer.Identity{ID: producer.ForeignID("stripe", "evt_1"), Source: "unheard of"}, nil
		}, producer.Identity{ID: "~ext,stripe,evt_1", Source: "custom"}},
	} {
		none := func(producer.Incoming) (producer.Identity, error) { return producer.Identity{}, producer.ErrNoID }
		if got, err := producer.Extract(in, none, tc.extractor, producer.ExtractWatermillUUID); err != nil || got != tc.want {
			t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
		}
	}
	if _, err := producer.Extract(producer.Incoming{Position: "3\x00"}, producer.ExtractPosition); err == nil {
		t.Error("a binary position passes")
	}
	_, err := producer.Extract(in, nil)
	wantInvalid(t, err, "extractor 0")
	_, err = producer.Extract(in, func(producer.Incoming) (producer.Identity, error) { return producer.Identity{}, nil })
	wantInvalid(t, err, "ID of extractor 0 (custom)")
}

func TestDefaultExtractors_BelongToTheCaller(t *testing.T) {
	t.Parallel()
	mine := producer.DefaultExtractors()
	clear(mine)
	if slices.ContainsFunc(producer.DefaultExtractors(), func(e producer.Extractor) bool { return e == nil }) {
		t.Error("changing the slice changed the default")
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("oncemill-id", "o1", "ce_id", "x", "", "orders", []byte(""))
	f.Add("ce_id", "a,b", "ce_source", "%2C ~", "", "", []byte(""))
	f.Add("content-type", "application/cloudevents+json", "id", "", "u", "t", []byte(`{"id":"a","source":"b"}`))
	f.Add("Idempotency-Key", `"a\"";p`, "Nats-Msg-Id", "n", "~nats,t,n", "t", []byte(""))
	f.Add("id", someUUID, "OnceMill-ID", "~ce,"+someUUID, "", "\xff", []byte(""))
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, uuid, topic string, payload []byte) {
		in := producer.Incoming{Header: header{name1: value1, name2: value2}, UUID: uuid, Topic: topic, Payload: payload}
		got, err := producer.Extract(in)
		if err != nil {
			var invalid *dedupstore.InvalidError
			if !errors.Is(err, producer.ErrNoID) && !errors.As(err, &invalid) || got != (producer.Identity{}) {
				t.Fatalf("%+v with %v (%T)", got, err, err)
			}
			return
		}
		key := dedupstore.Key{Tenant: "t", Group: "g", Handler: "h", ID: got.ID}
		if err := key.Validate(); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
		foreign := got.Source != producer.SourceMessageID && got.Source != producer.SourceWatermillUUID
		if foreign && !strings.HasPrefix(got.ID, "~") {
			t.Fatalf("%+v could be one of our own", got)
		}
		// Stamped with it, the message keeps its ID.
		m := producer.Message{ID: got.ID, Topic: "retry"}
		if err := producer.Stamp(t.Context(), &m); err != nil {
			t.Fatalf("%+v cannot be stamped: %v", got, err)
		}
		if again, err := producer.Extract(producer.Incoming{Header: m.Header, Topic: m.Topic}); err != nil || again.ID != got.ID {
			t.Fatalf("%+v became %+v, %v", got, again, err)
		}
	})
}

// A stream's IDs are unique within the stream, whatever the subject.
func TestExtract_OriginIsTheNamespace(t *testing.T) {
	t.Parallel()
	for _, h := range []header{{"Nats-Msg-Id": "a"}, {"Idempotency-Key": "a"}, {"id": "4f5f8a6e-6a3c-4b5e-9d0e-0f1f2f3f4f5f"}} {
		one, err1 := producer.Extract(producer.Incoming{Header: h, Topic: "orders.1", Origin: "ORDERS"})
		two, err2 := producer.Extract(producer.Incoming{Header: h, Topic: "orders.2", Origin: "ORDERS"})
		other, err3 := producer.Extract(producer.Incoming{Header: h, Topic: "orders.1", Origin: "OTHER"})
		if err1 != nil || err2 != nil || err3 != nil || one != two || one == other {
			t.Errorf("%v: %v %v %v, %v %v %v; want the first two equal and the third another", h, one, two, other, err1, err2, err3)
		}
	}
}
