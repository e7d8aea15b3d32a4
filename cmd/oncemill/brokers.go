package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/oncemill/oncemill/dedupstore/natskv"
)

// onKafka reports which of the two brokers is meant. A flag wins over what the settings have.
func (a *app) onKafka(flags *pflag.FlagSet) (bool, error) {
	hasNats, hasKafka := a.settings.Nats != "", a.settings.Kafka != ""
	if hasNats && hasKafka {
		hasNats, hasKafka = flags.Changed("nats"), flags.Changed("kafka")
	}
	if hasNats == hasKafka {
		return false, usagef("name one broker: set --nats or --kafka, their variables or a context of the config file")
	}
	return hasKafka, nil
}

// jetStream connects to the NATS servers that the settings name.
func (a *app) jetStream(options ...nats.Option) (jetstream.JetStream, error) {
	servers, own, _ := strings.Cut(a.settings.Nats, "?")
	values, err := ours("--nats", own, "creds", "domain", "ca", "cert", "key")
	if err != nil {
		return nil, err
	}
	return a.connectNATS(servers, values, options...)
}

// connectNATS connects to servers, with the parameters creds and domain.
func (a *app) connectNATS(servers string, values url.Values, options ...nats.Option) (jetstream.JetStream, error) {
	options = append([]nats.Option{nats.Timeout(a.timeout())}, append(options, nats.Name("oncemill"))...)
	if file := values.Get("creds"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	config, err := tlsOf("--nats", values)
	if err != nil {
		return nil, err
	}
	if config != nil {
		options = append(options, nats.Secure(config))
	}
	nc, err := nats.Connect(servers, options...)
	if err != nil {
		if wrong := (*url.Error)(nil); errors.As(err, &wrong) { // what it quotes may be a password
			err = errors.New("the address is no URL, and is not shown because it may hold a password; escape % as %25")
		}
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	a.closers = append(a.closers, nc.Close)
	if domain := values.Get("domain"); domain != "" {
		return jetstream.NewWithDomain(nc, domain)
	}
	return jetstream.New(nc)
}

// kv connects to the servers of an address such as nats+kv://HOST:PORT,HOST:PORT/BUCKET?creds=FILE. With a parameter
// subject the path is a stream.
func (a *app) kv(at *url.URL) (js jetstream.JetStream, c natskv.Config, err error) {
	values, err := ours("--store", at.RawQuery, "creds", "domain", "subject", "ca", "cert", "key")
	if err != nil {
		return nil, c, err
	}
	c = natskv.Config{Bucket: strings.Trim(at.Path, "/"), Logger: quiet}
	if c.Subject = values.Get("subject"); c.Subject != "" {
		c.Bucket, c.Stream = "", c.Bucket
	}
	var servers []string
	for host := range strings.SplitSeq(at.Host, ",") {
		one := url.URL{Scheme: strings.TrimSuffix(at.Scheme, "+kv"), User: at.User, Host: host}
		servers = append(servers, one.String())
	}
	js, err = a.connectNATS(strings.Join(servers, ","), values)
	return js, c, err
}

// kafka makes a client of the brokers that the settings name.
func (a *app) kafka(options ...kgo.Opt) (*kgo.Client, error) {
	own, err := a.kafkaOpts()
	if err != nil {
		return nil, err
	}
	cl, err := kgo.NewClient(append(own, options...)...)
	if err != nil {
		return nil, usagef("--kafka: %w", err)
	}
	a.closers = append(a.closers, cl.Close)
	return cl, nil
}

// kafkaOpts say how the brokers are reached that the settings name.
func (a *app) kafkaOpts() (options []kgo.Opt, err error) {
	brokers, own, _ := strings.Cut(a.settings.Kafka, "?")
	values, err := ours("--kafka", own, "tls", "sasl", "ca", "cert", "key")
	if err != nil {
		return nil, err
	}
	if at := strings.LastIndex(brokers, "@"); at >= 0 {
		user, password, _ := strings.Cut(brokers[:at], ":")
		brokers = brokers[at+1:]
		switch mechanism := values.Get("sasl"); mechanism {
		case "", "plain":
			options = append(options, kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism()))
		case "scram-sha-256":
			options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha256Mechanism()))
		case "scram-sha-512":
			options = append(options, kgo.SASL(scram.Auth{User: user, Pass: password}.AsSha512Mechanism()))
		default:
			return nil, usagef("sasl of --kafka is %q, want plain, scram-sha-256 or scram-sha-512", mechanism)
		}
	}
	config, err := tlsOf("--kafka", values)
	if err != nil {
		return nil, err
	}
	if config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	return append(options, kgo.DialTimeout(a.timeout()), kgo.RequestTimeoutOverhead(a.timeout()),
		kgo.RetryTimeout(a.timeout()), kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ClientID("oncemill")), nil
}

// tlsOf makes of the parameters tls, ca, cert and key what TLS needs: the authority of the servers, if the machine does
// not know it, and a certificate of the client. Nil: no TLS is asked for.
func tlsOf(flag string, values url.Values) (*tls.Config, error) {
	ca, cert, key := values.Get("ca"), values.Get("cert"), values.Get("key")
	switch encrypted := values.Get("tls"); {
	case encrypted != "" && encrypted != "true" && encrypted != "false":
		return nil, usagef("tls of %s is %q, want true or false", flag, encrypted)
	case encrypted == "false", encrypted == "" && ca+cert+key == "":
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, usagef("ca of %s: %w", flag, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, usagef("ca of %s: %s has no certificate in PEM", flag, ca)
		}
	}
	if cert+key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, usagef("cert and key of %s: %w", flag, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// ours reads parameters that follow an address, and refuses others.
func ours(flag, query string, names ...string) (url.Values, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, usagef("%s: %w", flag, errors.New("its parameters are not of the form name=value&name=value"))
	}
	for name := range values {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ") {
			if strings.Contains(query, "@") { // it may be of a password
				return nil, usagef("%s has a ? before its last @, where parameters begin", flag)
			}
			return nil, usagef("%s has the parameter %q, want %s", flag, name, strings.Join(names, " or "))
		}
	}
	return values, nil
}
