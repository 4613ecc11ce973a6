// go-redis' cluster client, unmodified, while nodes are restarted and replaced: sets keys and reads them back until a
// file is there. See scripts/rolling-restart.
//
// usage: rolling PORT FILE
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var commands, errors, longest atomic.Int64

func run(client *redis.ClusterClient, worker int, file string) {
	ctx := context.Background()
	for n := 0; ; n++ {
		if _, err := os.Stat(file); err == nil {
			return
		}
		key, value := fmt.Sprintf("go-%d-%d", worker, n%1000), fmt.Sprint(n)
		for _, call := range []func() error{
			func() error { return client.Set(ctx, key, value, 0).Err() },
			func() error {
				found, err := client.Get(ctx, key).Result()
				if err == nil && found != value {
					err = fmt.Errorf("%s is %s, not %s", key, found, value)
				}
				return err
			},
		} {
			began := time.Now()
			err := call()
			took := time.Since(began).Milliseconds()
			for before := longest.Load(); took > before && !longest.CompareAndSwap(before, took); before = longest.Load() {
			}
			commands.Add(1)
			if err != nil {
				errors.Add(1)
				fmt.Fprintf(os.Stderr, "go-redis at %s, after %d ms: %v\n", began.Format("05.000"), took, err)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func main() {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + os.Args[1]}})
	var workers sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		worker := worker
		workers.Add(1)
		go func() {
			defer workers.Done()
			run(client, worker, os.Args[2])
		}()
	}
	workers.Wait()
	fmt.Printf("go-redis: %d commands, %d errors, longest %d ms\n", commands.Load(), errors.Load(), longest.Load())
	if errors.Load() > 0 || commands.Load() == 0 {
		os.Exit(1)
	}
}
