package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-dev/atoll/playground/child"
)

const (
	kineRole  = "kine"
	kineTitle = "kine"
	// kineVersion is not in go.mod, because Kine would add a hundred modules to it. The go
	// command builds it separately.
	kineVersion = "v0.17.5"
)

// buildKine builds Kine into a directory and returns the binary's path.
func buildKine(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "install", "github.com/k3s-io/kine@"+kineVersion)
	cmd.Dir = dir // not in this module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return "", fmt.Errorf("build Kine %s with the go command: %w: %s", kineVersion, err, lines[len(lines)-1])
	}
	return filepath.Join(dir, "kine"), nil
}

// runKine runs an unmodified Kine and reports when it accepts connections.
func runKine(ctx context.Context, link *child.Link) error {
	var cfg storeConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Its connection pool is unlimited, which is the default, and keeps idle connections. With
	// a limit below the number of clients this version hangs: each transaction holds a
	// connection and waits for a second one (seen with 45 connections and 64 or 256 clients).
	cmd := exec.CommandContext(ctx, cfg.Binary, "--listen-address=tcp://"+address, "--metrics-bind-address=0",
		"--datastore-max-idle-connections=1000")
	// Not on the command line, where every user could read the password.
	cmd.Env = append(os.Environ(), "KINE_ENDPOINT="+cfg.Datastore)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Kine: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for ready := false; !ready; {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			ready = true
			break
		}
		select {
		case err := <-ended:
			return fmt.Errorf("kine ended: %w", errors.Join(err, errors.New("see its log")))
		case <-time.After(20 * time.Millisecond):
		}
	}
	if err := link.Ready(endpoint{Address: "http://" + address}); err != nil {
		return err
	}
	<-ended
	return context.Cause(ctx)
}
