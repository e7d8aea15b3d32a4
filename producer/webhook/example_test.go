package webhook_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/oncemill/oncemill"
	"github.com/oncemill/oncemill/dedupstore"
	"github.com/oncemill/oncemill/producer"
	"github.com/oncemill/oncemill/producer/webhook"
)

func ExampleNew() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	guard, err := oncemill.NewGuard(store, oncemill.HighValue())
	if err != nil {
		panic(err)
	}
	// An outbox in real life.
	publisher := webhook.PublisherFunc(func(_ context.Context, messages ...producer.Message) error {
		for _, m := range messages {
			fmt.Println(m.Topic, m.Header["x-github-event"], string(m.Payload))
		}
		return nil
	})
	verifier, err := webhook.GitHub("It's a Secret to Everybody")
	if err != nil {
		panic(err)
	}
	hooks, err := webhook.New(guard, publisher, webhook.Config{Sender: "github", Verifier: verifier,
		Topic: "hooks.github"})
	if err != nil {
		panic(err)
	}
	for range 2 { // the second one is a redelivery
		r := httptest.NewRequest(http.MethodPost, "/hooks/github", strings.NewReader("Hello, World!"))
		r.Header.Set("X-GitHub-Event", "push")
		r.Header.Set("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
		r.Header.Set("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")
		w := httptest.NewRecorder()
		hooks.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// hooks.github push Hello, World!
	// 200 {"status":"enqueued"}
	// 200 {"status":"enqueued before"}
}
