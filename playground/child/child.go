// Package child runs parts of a program, called roles, as child processes of
// the same binary that cannot outlive their parent.
//
// Kubernetes' components keep process-wide state (feature gates, metrics,
// configz), so two clusters cannot share one process. Re-executing the running
// binary gives each its own without anything to install.
//
// The parent holds the child's standard input open. Its first line is the
// role's configuration, another one the order to stop; and it ends by itself
// when the parent dies, however it dies. The child's standard output carries
// messages back, and its standard error goes to a log file.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"
)

// roleVariable names the role in the environment of a child.
const roleVariable = "ATOLL_PLAYGROUND_ROLE"

// How long a role may take to stop: once it has been told to, and when its
// parent has died, so that nobody is left who waits for it.
const (
	stopGrace   = 15 * time.Second
	orphanGrace = 2 * time.Second
)

// stopOrder is the line that tells a child to stop.
const stopOrder = "stop\n"

// Role is what a child process does: it runs until ctx ends. Returning nil
// before that is as much a failure as returning an error.
type Role func(ctx context.Context, link *Link) error

// message is one line from child to parent.
type message struct {
	Progress string          `json:"progress,omitempty"`
	Ready    json.RawMessage `json:"ready,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// Link is a role's line to its parent.
type Link struct {
	config []byte

	mu  sync.Mutex
	out *json.Encoder
}

// Config decodes what the parent gave to Start.
func (l *Link) Config(into any) error {
	if err := json.Unmarshal(l.config, into); err != nil {
		return fmt.Errorf("read the configuration of the role: %w", err)
	}
	return nil
}

// Progress tells the parent what the role is doing.
func (l *Link) Progress(step string) { l.send(message{Progress: step}) }

// Ready tells the parent that the role does its work now, and what it needs
// to know of it.
func (l *Link) Ready(details any) error {
	raw, err := json.Marshal(details)
	if err != nil {
		return fmt.Errorf("report ready: %w", err)
	}
	l.send(message{Ready: raw})
	return nil
}

func (l *Link) send(m message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A parent that is gone cannot be told; the end of standard input says so.
	_ = l.out.Encode(m)
}

// Main must be the first thing that main or TestMain calls. In a child
// process it runs the role and never returns; in any other it returns at once.
//
// A program whose only argument is the name of a role was started by others, who know nothing of links: nothing is
// on the role's, and its standard files are as they are.
func Main(roles map[string]Role) {
	name, ok := os.LookupEnv(roleVariable)
	if !ok {
		runNamed(roles)
		return
	}
	// What the role starts in its turn is not a child of this kind.
	os.Unsetenv(roleVariable)
	// A terminal sends Ctrl-C to parent and children alike. The parent decides
	// in which order things stop.
	signal.Ignore(os.Interrupt)

	link := &Link{out: json.NewEncoder(os.Stdout)}
	// Libraries that print must not disturb the messages.
	os.Stdout = os.Stderr

	role, ok := roles[name]
	if !ok {
		fail(link, fmt.Errorf("this binary has no role %q", name))
	}
	in := bufio.NewReader(os.Stdin)
	config, err := in.ReadBytes('\n')
	if err != nil {
		fail(link, fmt.Errorf("read the configuration of role %s: %w", name, err))
	}
	link.config = config

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		grace := orphanGrace
		if order, _ := in.ReadString('\n'); order == stopOrder {
			grace = stopGrace
		}
		cancel()
		time.Sleep(grace)
		fail(link, fmt.Errorf("role %s did not stop within %s", name, grace))
	}()
	err = role(ctx, link)
	if ctx.Err() != nil {
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintf(os.Stderr, "while stopping: %v\n", err)
		}
		os.Exit(0)
	}
	if err == nil {
		err = errors.New("ended by itself")
	}
	fail(link, err)
}

// runNamed runs the role that the only argument names, if one does.
func runNamed(roles map[string]Role) {
	if len(os.Args) != 2 {
		return
	}
	role, ok := roles[os.Args[1]]
	if !ok {
		return
	}
	if err := role(context.Background(), &Link{out: json.NewEncoder(io.Discard)}); err != nil {
		fmt.Fprintln(os.Stderr, "fatal:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func fail(link *Link, err error) {
	fmt.Fprintln(os.Stderr, "fatal:", err)
	link.send(message{Error: err.Error()})
	os.Exit(1)
}
