package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/atoll-dev/atoll/playground/atoll"
)

// getPath reads a URL path of a server that is not an object.
func getPath(ctx context.Context, server *atoll.Server, path string) ([]byte, error) {
	config, err := server.REST()
	if err != nil {
		return nil, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	raw, err := client.RESTClient().Get().RequestURI(path).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s of atoll: %w", path, err)
	}
	return raw, nil
}

// profileTo writes a CPU profile of a server to a directory, and a heap profile when the
// returned function is called. Without a directory it does nothing.
func profileTo(ctx context.Context, server *atoll.Server, dir, name string, long time.Duration) (end func() error) {
	if dir == "" {
		return func() error { return nil }
	}
	keep := func(kind, path string) error {
		raw, err := getPath(ctx, server, path)
		if err != nil {
			return err
		}
		return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name+"."+kind), raw, 0o600))
	}
	done := make(chan error, 1)
	go func() {
		done <- keep("cpu", fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(min(long, longestProfile).Seconds()))))
	}()
	return func() error {
		return errors.Join(<-done, keep("heap", "/debug/pprof/heap"))
	}
}

// longestProfile is shorter than the timeout of the server's client.
const longestProfile = 25 * time.Second

// requests counts the requests that a server has answered, by verb and resource.
type requests map[string]float64

// requestsOf reads the counts from the server's metrics.
func requestsOf(ctx context.Context, server *atoll.Server) (requests, error) {
	raw, err := getPath(ctx, server, "/metrics")
	if err != nil {
		return nil, err
	}
	out := requests{}
	for line := range bytes.Lines(raw) {
		rest, ok := bytes.CutPrefix(line, []byte("apiserver_request_total{"))
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(string(rest), "} ")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		what := labelOf(labels, "verb") + " " + labelOf(labels, "resource")
		if sub := labelOf(labels, "subresource"); sub != "" {
			what += "/" + sub
		}
		out[what] += n
	}
	return out, nil
}

func labelOf(labels, name string) string {
	_, rest, _ := strings.Cut(","+labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// since returns the requests since an earlier reading per object, without rare ones.
func (r requests) perObject(before requests, each float64) requests {
	out := requests{}
	for what, n := range r {
		if part := (n - before[what]) / each; part >= 0.05 {
			out[what] = part
		}
	}
	return out
}
