// go-redis over TLS. See scripts/tls-clients.
//
// usage: main PORT CA WRONG_CA CERTIFICATE KEY
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func check(what string, holds bool) {
	if !holds {
		log.Fatalf("go-redis: %s failed", what)
	}
	fmt.Printf("check go-redis: %s\n", what)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func connect(ca string, own ...tls.Certificate) *redis.Client {
	config := (*tls.Config)(nil)
	if ca != "" {
		pem, err := os.ReadFile(ca)
		must(err)
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		config = &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: own}
	}
	return redis.NewClient(&redis.Options{
		Addr:       "127.0.0.1:" + os.Args[1],
		TLSConfig:  config,
		MaxRetries: -1,
	})
}

func main() {
	client := connect(os.Args[2])
	check("SET", client.Set(ctx, "go", "1", 0).Val() == "OK")
	check("GET", client.Get(ctx, "go").Val() == "1")

	pipeline := client.Pipeline()
	for i := 0; i < 100; i++ {
		pipeline.Set(ctx, "go"+strconv.Itoa(i), i, 0)
		pipeline.Get(ctx, "go"+strconv.Itoa(i))
	}
	replies, err := pipeline.Exec(ctx)
	must(err)
	holds := len(replies) == 200
	for i := 0; holds && i < 100; i++ {
		holds = replies[2*i+1].(*redis.StringCmd).Val() == strconv.Itoa(i)
	}
	check("a pipeline", holds)

	var incremented *redis.IntCmd
	must(client.Watch(ctx, func(tx *redis.Tx) error {
		_, err := tx.TxPipelined(ctx, func(queue redis.Pipeliner) error {
			incremented = queue.Incr(ctx, "go")
			return nil
		})
		return err
	}, "go"))
	check("a transaction", incremented.Val() == 2 && client.Get(ctx, "go").Val() == "2")

	large := bytes.Repeat([]byte("collie42"), 1<<19)
	must(client.Set(ctx, "large", large, 0).Err())
	got, err := client.Get(ctx, "large").Bytes()
	must(err)
	check("a value of 4 MiB", bytes.Equal(got, large))

	own, err := tls.LoadX509KeyPair(os.Args[4], os.Args[5])
	must(err)
	check("a client's certificate", connect(os.Args[2], own).Get(ctx, "go").Val() == "2")

	err = connect(os.Args[3]).Ping(ctx).Err()
	check("a wrong CA is refused", err != nil && strings.Contains(err.Error(), "certificate"))
	// It drops the answer to the first command that it sends by itself, and with it the reason.
	check("a client without TLS is refused", connect("").Ping(ctx).Err() != nil)
}
