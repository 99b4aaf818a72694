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
	// kineVersion is not in go.mod: Kine would bring a hundred modules into it.
	// The go command builds it beside.
	kineVersion = "v0.17.5"
	// kineConnections is a pool that PostgreSQL's default of 100 connections can
	// bear twice; without a bound Kine exhausts them and fails.
	kineConnections = 45
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

// runKine runs Kine as it is and tells when it answers.
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
	cmd := exec.CommandContext(ctx, cfg.Binary, "--listen-address=tcp://"+address, "--metrics-bind-address=0",
		fmt.Sprintf("--datastore-max-open-connections=%d", kineConnections),
		fmt.Sprintf("--datastore-max-idle-connections=%d", kineConnections))
	// Not on the command line, where everybody could read the password.
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
