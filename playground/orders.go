package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// What a playground that runs can be told.
const (
	pull    = "pull"
	restore = "return"
)

// ordersFile in the playground's directory holds the URL that takes orders. It is a
// secret: on one machine anybody can call it.
const ordersFile = "orders"

// parts are what orders are about.
type parts interface {
	Pull(part string) error
	Return(ctx context.Context, part string) error
}

// takeOrders listens for orders until it is closed.
func takeOrders(dir string, s parts, out *output) (io.Closer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for orders: %w", err)
	}
	secret := rand.Text()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /"+secret+"/{verb}/{part}", func(w http.ResponseWriter, r *http.Request) {
		verb, part := r.PathValue("verb"), r.PathValue("part")
		var done string
		var err error
		switch verb {
		case pull:
			done, err = "is pulled", s.Pull(part)
		case restore:
			ctx, cancel := context.WithTimeout(r.Context(), startTimeout)
			defer cancel()
			done, err = "is back", s.Return(ctx, part)
		default:
			http.NotFound(w, r)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		out.step(part, done)
		fmt.Fprintln(w, part, done)
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }() // until closed
	file := filepath.Join(dir, ordersFile)
	if err := os.WriteFile(file, []byte("http://"+listener.Addr().String()+"/"+secret+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return closer(func() error { return errors.Join(os.Remove(file), server.Close()) }), nil
}

type closer func() error

func (c closer) Close() error { return c() }

// order has the playground of a directory do something to parts, one after the
// other.
func order(ctx context.Context, dir, verb string, parts []string, out io.Writer) error {
	if len(parts) == 0 {
		return fmt.Errorf("%s: name a cluster, or a server of Atoll", verb)
	}
	url, err := os.ReadFile(filepath.Join(dir, ordersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no playground is ready in %s: start one, or give the --dir of one before %q", verb, dir, verb)
	} else if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	for _, part := range parts {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSpace(string(url))+"/"+verb+"/"+part, nil)
		if err != nil {
			return fmt.Errorf("%s %s: %w", verb, part, err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			// Not the error: it has the secret in it.
			return fmt.Errorf("%s %s: the playground of %s does not answer: start it again", verb, part, dir)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case err != nil:
			return fmt.Errorf("%s %s: %w", verb, part, err)
		case response.StatusCode != http.StatusOK:
			return errors.New(strings.TrimSpace(string(answer)))
		}
		fmt.Fprint(out, string(answer))
	}
	return nil
}
