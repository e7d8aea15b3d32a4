package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// servers are where things are, in a context of the file.
type servers struct {
	Store  string `yaml:"store"`
	Outbox string `yaml:"outbox"`
	Nats   string `yaml:"nats"`
	Kafka  string `yaml:"kafka"`
	Trace  string `yaml:"trace"`
}

type file struct {
	Current  string             `yaml:"current"`
	Contexts map[string]servers `yaml:"contexts"`
}

// settings are the flags of all commands. What no flag says, the context says that --context names. Without --context
// the environment says it, and else the context.
type settings struct {
	servers
	config, context, output string
	timeout                 time.Duration
}

func (s *settings) flags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&s.Store, "store", "", "where records are: redis://HOST:PORT[/DB][?prefix=P],\n"+
		"redis+cluster://HOST:PORT,\npostgres://…[?table=T&schema=S],\nmysql://…/DATABASE[?table=T],\n"+
		"sqlite:PATH[?table=T],\n"+
		"nats+kv://HOST:PORT,…[/BUCKET][?creds=FILE&domain=D],\n"+
		"nats+kv://HOST:PORT,…/STREAM?subject=S,\ndynamodb://TABLE[?region=R&endpoint=URL] or\n"+
		"cassandra://HOST:PORT,…[/KEYSPACE]\n[?table=T&datacenter=D&tls=true]")
	f.StringVar(&s.Outbox, "outbox", "", "where the outbox "+
		"is:\npostgres://…[?table=T&schema=S],\nmysql://…/DATABASE[?table=T] or\nsqlite:PATH[?table=T]")
	f.StringVar(&s.Nats, "nats", "", "the NATS servers: nats://HOST:PORT,…[?creds=FILE&domain=D]")
	f.StringVar(&s.Kafka, "kafka", "", "the Kafka brokers:\nHOST:PORT,…[?tls=true&sasl=MECHANISM&…],\n"+
		"with USER:PASSWORD@ before them in a file; as for all with TLS:\n"+
		"ca=FILE of an own authority, cert=FILE&key=FILE of this client")
	f.StringVar(&s.Trace, "trace", "", "link to a trace; {trace} stands for its ID")
	f.StringVar(&s.context, "context", "", "the context of the config file to use")
	f.StringVar(&s.config, "config", "", "the config file")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "give up on a server that does not answer for so long")
	f.StringVarP(&s.output, "output", "o", "table", "table, json or jsonl")
}

// load fills in what flags do not say.
func (s *settings) load() error {
	if !slices.Contains([]string{"table", "json", "jsonl"}, s.output) {
		return usagef("--output is %q, want table, json or jsonl", s.output)
	}
	chosen, err := s.chosen()
	if err != nil {
		return err
	}
	fill := func(value *string, name, of string) {
		if s.context == "" {
			of = cmp.Or(os.Getenv(name), of)
		}
		*value = cmp.Or(*value, of)
	}
	fill(&s.Store, "ONCEMILL_STORE", chosen.Store)
	fill(&s.Outbox, "ONCEMILL_OUTBOX", chosen.Outbox)
	fill(&s.Nats, "ONCEMILL_NATS", chosen.Nats)
	fill(&s.Kafka, "ONCEMILL_KAFKA", chosen.Kafka)
	fill(&s.Trace, "ONCEMILL_TRACE", chosen.Trace)
	for _, address := range []*string{&s.Store, &s.Outbox, &s.Nats, &s.Kafka} {
		if path, ok := strings.CutPrefix(*address, "@"); ok {
			text, err := os.ReadFile(path)
			if err != nil {
				return fmt.Errorf("file of an address: %w", err)
			}
			*address = strings.TrimSpace(string(text))
		}
	}
	return nil
}

// chosen is the context of the file that is in use; empty if there is none.
func (s *settings) chosen() (servers, error) {
	name := cmp.Or(s.context, os.Getenv("ONCEMILL_CONTEXT"))
	f, path, err := s.file()
	switch {
	case errors.Is(err, fs.ErrNotExist) && path == "" && name == "":
		return servers{}, nil
	case err != nil:
		return servers{}, err
	}
	name = cmp.Or(name, f.Current)
	found, ok := f.Contexts[name]
	if !ok && name != "" {
		return servers{}, usagef("config file %s has no context %q, it has %s", path, name,
			strings.Join(slices.Sorted(maps.Keys(f.Contexts)), ", "))
	}
	return found, nil
}

// file reads the file of contexts. Without a path it is where nobody named it, and not there.
func (s *settings) file() (f file, path string, err error) {
	path = cmp.Or(s.config, os.Getenv("ONCEMILL_CONFIG"))
	named := path != ""
	if !named {
		dir, err := os.UserConfigDir()
		if err != nil {
			return f, "", fs.ErrNotExist // a user without a home has no file there
		}
		path = filepath.Join(dir, "oncemill.yaml")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		if !named {
			path = ""
		}
		return f, path, fmt.Errorf("config file: %w", err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil {
		return f, path, fmt.Errorf("config file %s: %w", path, err)
	}
	return f, path, nil
}
