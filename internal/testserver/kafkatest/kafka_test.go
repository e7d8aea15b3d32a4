package kafkatest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncemill/oncemill/internal/testserver"

	"github.com/twmb/franz-go/pkg/kgo"
)

// This is also how the scripts fetch the jars before tests with a time limit need them.
func TestKafka_JarsAreFetchedOnce(t *testing.T) {
	b := newKafkaBroker(t, t.TempDir(), nil)
	if found, err := filepath.Glob(filepath.Join(b.jars, "kafka_2.13-"+kafkaVersion+".jar")); len(found) != 1 || err != nil {
		t.Errorf("the broker's jar: %q, %v", found, err)
	}
}

func TestKafka_OfATest(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.CreateTopic("t", 2)
	t.Run("answers nothing while paused", func(t *testing.T) { pausedAnswersNothing(t, s) })
	t.Run("keeps its data and port over kill and restart", func(t *testing.T) { keepsItsDataAndPort(t, s) })
}

func pausedAnswersNothing(t *testing.T, s *Server) {
	s.Pause()
	impatient := s.Client(kgo.RequestTimeoutOverhead(200*time.Millisecond), kgo.RequestRetries(0))
	if err := impatient.Ping(t.Context()); err == nil {
		t.Error("a paused broker answers")
	}
	s.Resume()
	if err := s.Client().Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func keepsItsDataAndPort(t *testing.T, s *Server) {
	addr := s.Addr
	produced := s.Client(kgo.DefaultProduceTopic("t")).ProduceSync(t.Context(), kgo.StringRecord("a"), kgo.StringRecord("b"))
	if err := produced.FirstErr(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	select {
	case <-s.Process().Ended():
	default:
		t.Error("the process has not ended")
	}
	s.Restart()
	if got := fetch(t, s, "t", 2); len(got) != 2 || s.Addr != addr {
		t.Errorf("after the restart: %d records at %s, want 2 at %s", len(got), s.Addr, addr)
	}
}

// fetch reads n records.
func fetch(t *testing.T, s *Server, topic string, n int) (records []*kgo.Record) {
	t.Helper()
	cl := s.Client(kgo.ConsumeTopics(topic))
	ctx, cancel := context.WithTimeout(t.Context(), testserver.WaitLimit)
	defer cancel()
	for len(records) < n && ctx.Err() == nil {
		records = append(records, cl.PollFetches(ctx).Records()...)
	}
	return records
}

func TestSharedKafka_IsOneForAllAndRecorded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers")
	t.Setenv(testserver.UsedFile, file)
	first, second := Shared(t), Shared(t)
	if first.Addr != second.Addr {
		t.Errorf("two brokers: %s and %s", first.Addr, second.Addr)
	}
	first.CreateTopic(t.Name(), 1)
	if b, err := os.ReadFile(file); err != nil || strings.Count(string(b), kafkaRecord+"\n") != 2 {
		t.Errorf("recorded %q, %v", b, err)
	}
}

func TestSharedKafka_EndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "broker")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command := []string{"sh", "-c", "touch started; exec sleep 1000"}
	alive, err := testserver.StartWatched(dir, command, testserver.WaitLimit, func() error {
		_, err := os.Stat(filepath.Join(dir, "started"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	alive.Close() // as the end of the process does
	err = testserver.Until(t.Context(), func() error {
		if _, err := os.Stat(dir); err == nil {
			return errors.New("the folder is still there: the command has not ended")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestStart_SkipsWhereNoServerIsWanted(t *testing.T) {
	t.Setenv("ONCEMILL_TEST_SERVERS", "none")
	for i, ask := range []func(testing.TB){
		func(t testing.TB) { Start(t) },
		func(t testing.TB) { Shared(t) },
	} {
		if did := testserver.EndOf(t, ask); did != "skip" {
			t.Errorf("%d: %q, want a skip", i, did)
		}
	}
}
