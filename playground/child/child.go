// Package child runs parts of a program, called roles, as child processes of the same binary. A child
// never outlives its parent.
//
// Kubernetes' components have process-wide state (feature gates, metrics, configz), so two clusters
// cannot share one process. Executing the running binary again gives each cluster its own process,
// with nothing to install.
//
// The parent keeps the child's standard input open. The first line is the role's configuration; a
// second line tells the child to stop. At the end of the input the child stops by itself, so it
// notices every death of its parent. The child's standard output carries messages to the parent, and
// its standard error is appended to a log file.
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

// These limit how long a role may take to stop: when its parent told it to, and when its parent died
// and no one waits for it.
const (
	stopGrace   = 15 * time.Second
	orphanGrace = 2 * time.Second
)

// stopOrder is the line that tells a child to stop.
const stopOrder = "stop\n"

// Role is the work of a child process, which runs until ctx ends. A nil error before that is a
// failure as well.
type Role func(ctx context.Context, link *Link) error

// message is one line from child to parent.
type message struct {
	Progress string          `json:"progress,omitempty"`
	Ready    json.RawMessage `json:"ready,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// Link connects a role to its parent.
type Link struct {
	config []byte

	mu  sync.Mutex
	out *json.Encoder
}

// Config decodes the configuration that the parent passed to Start.
func (l *Link) Config(into any) error {
	if err := json.Unmarshal(l.config, into); err != nil {
		return fmt.Errorf("read the configuration of the role: %w", err)
	}
	return nil
}

// Progress reports a step to the parent.
func (l *Link) Progress(step string) { l.send(message{Progress: step}) }

// Ready tells the parent that the role is ready, with details that the parent needs.
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
	// If the parent is gone, the write fails; the role stops at the end of its standard input.
	_ = l.out.Encode(m)
}

// Main must be the first call in main or TestMain. In a child process it runs the role and never
// returns; in any other process it returns at once.
//
// It also runs a role if the program's only argument is the name of that role. Such a process was
// started by code that does not use this package, so its Link goes nowhere and its standard files
// are unchanged.
func Main(roles map[string]Role) {
	name, ok := os.LookupEnv(roleVariable)
	if !ok {
		runNamed(roles)
		return
	}
	// Processes that the role starts are no children in this sense.
	os.Unsetenv(roleVariable)
	// A terminal sends Ctrl-C to parent and children alike. The parent decides the order in which
	// things stop.
	signal.Ignore(os.Interrupt)

	link := &Link{out: json.NewEncoder(os.Stdout)}
	// Output of libraries must not corrupt the messages.
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
		err = errors.New("the role returned without being told to stop")
	}
	fail(link, err)
}

// runNamed runs the role that the only argument names, if any.
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
