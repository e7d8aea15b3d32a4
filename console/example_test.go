package console_test

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/oncemill/oncemill/console"
	"github.com/oncemill/oncemill/dedupstore"
)

// Everybody may look. Only somebody with a name, which a proxy put into a header, may act.
func ExampleNew() {
	store, err := dedupstore.NewMemory(dedupstore.MemoryConfig{}) // in your service redisstore.New, pgstore.New, …
	if err != nil {
		log.Fatal(err)
	}
	c, err := console.New(console.Config{
		Stores: []console.Store{{Name: "records", Inspector: store}},
		Hosts:  []string{"example.com"},
		Authorize: func(r *http.Request, a console.Action) (who string, err error) {
			if who = r.Header.Get("X-Forwarded-User"); who == "" && a != console.View {
				err = errors.New("log in to change something")
			}
			return who, err
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/console/", c.Handler()) // and go c.Run(ctx)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/console/messages", nil))
	fmt.Println(answer.Code, answer.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
