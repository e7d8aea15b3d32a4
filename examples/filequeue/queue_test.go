package filequeue_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/oncemill/oncemill/consumer"
	"github.com/oncemill/oncemill/consumer/sourcetest"
	"github.com/oncemill/oncemill/examples/filequeue"
	"github.com/oncemill/oncemill/producer"
)

func TestSource_Conforms(t *testing.T) {
	t.Parallel()
	sourcetest.RunVirtual(t, func(t *testing.T) sourcetest.Subject {
		path := filepath.Join(t.TempDir(), "queue")
		q, err := filequeue.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { q.Close() })
		return sourcetest.Subject{
			Topic: "orders",
			Open: func(m sourcetest.Member) consumer.Source {
				return &filequeue.Source{Queue: q, Once: m.Once, MaxInFlight: max(m.MaxInFlight, 4), Grace: m.Grace}
			},
			Publish: func(messages ...sourcetest.Message) {
				for _, m := range messages {
					if err := q.Publish(producer.Message{ID: m.ID, Topic: "orders", Payload: m.Payload}); err != nil {
						t.Error(err)
					}
				}
			},
			Left: func() int {
				return left(t, path)
			},
			Lacks: map[sourcetest.Capability]string{
				sourcetest.Order:   "a retry may come behind what follows it",
				sourcetest.Members: "one process reads the file",
			},
		}
	})
}

// A line that a crash or a full disk has torn is skipped, and hides nothing behind it.
func TestQueue_SkipsATornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queue")
	q, err := filequeue.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if err := os.WriteFile(path, []byte(`{"Message":{"ID":"torn","Top`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := q.Publish(producer.Message{ID: "m1", Topic: "orders"}); err != nil {
		t.Fatal(err)
	}
	if n := left(t, path); n != 1 {
		t.Errorf("%d messages, want one", n)
	}
}

// left counts the lines of messages that have not ended.
func left(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all, at := map[int]bool{}, 0
	for line := range bytes.Lines(text) {
		var l struct {
			Message *producer.Message
			Ended   int
		}
		switch err := json.Unmarshal(line, &l); {
		case err != nil:
		case l.Message == nil:
			delete(all, l.Ended)
		default:
			all[at] = true
		}
		at += len(line)
	}
	return len(all)
}
