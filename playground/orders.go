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

// The commands that a running playground accepts.
const (
	pull    = "pull"
	restore = "return"
)

// ordersFile in the playground's directory contains the URL that accepts commands. The URL is
// secret, because every user of the machine can connect to its port.
const ordersFile = "orders"

// parts carries out the commands.
type parts interface {
	Pull(part string) error
	Return(ctx context.Context, part string) error
}

// takeOrders accepts commands over HTTP until it is closed.
func takeOrders(dir string, s parts, out *output) (io.Closer, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for commands: %w", err)
	}
	secret := rand.Text()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /"+secret+"/{verb}/{part}", func(w http.ResponseWriter, r *http.Request) {
		verb, part := r.PathValue("verb"), r.PathValue("part")
		var done string
		var err error
		switch verb {
		case pull:
			done, err = "pulled", s.Pull(part)
		case restore:
			ctx, cancel := context.WithTimeout(r.Context(), startTimeout)
			defer cancel()
			done, err = "returned", s.Return(ctx, part)
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

// order sends a command for each part, one after the other, to the playground that runs in dir.
func order(ctx context.Context, dir, verb string, parts []string, out io.Writer) error {
	if len(parts) == 0 {
		return fmt.Errorf("%s: name a cluster or a server of Atoll", verb)
	}
	url, err := os.ReadFile(filepath.Join(dir, ordersFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no playground is ready in %s: start one, or put the --dir of a running one before %q", verb, dir, verb)
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
			// The cause is left out, because it contains the secret URL.
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
