// Package cliview implements the commands of the CLI for infrastructure: it creates plans, follows and shows
// them, prompts, approves, applies, and follows the apply. Users read its messages, so each error says how to
// fix it.
//
// It is a client of Atoll's API: plans, approvals and applies are objects, and changes a subresource. The
// servers check everything that it checks.
package cliview

import (
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/render"
)

// Session is a user's connection to a namespace of Atoll. It serves one command at a time.
type Session struct {
	Dynamic   dynamic.Interface
	Discovery discovery.DiscoveryInterface
	Namespace string

	// In is read for answers. The user is prompted only if Interactive is set.
	In          io.Reader
	Interactive bool
	// Out is for results, Err for progress and messages.
	Out, Err io.Writer
	// Color enables colors on Out. ErrIsTerminal states that lines on Err can be redrawn.
	Color, ErrIsTerminal bool
	// Program is the command as the user types it: "atoll", or "kubectl atoll". Flags are the flags to repeat
	// in suggested commands, so that they connect to the same Atoll.
	Program, Flags string

	Clock clock.Clock
	// PollInterval is the interval at which long operations are polled.
	PollInterval time.Duration
}

// Connect returns a Session with the clients for a configuration. The caller sets the other fields.
func Connect(config *rest.Config) (*Session, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1 // the server has its own fairness, and each page of changes is a request
	// Print a warning about a deprecated argument once for a thousand objects.
	config.WarningHandler = rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client of Atoll: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client of Atoll: %w", err)
	}
	return &Session{Dynamic: dyn, Discovery: disco, Clock: clock.RealClock{}, PollInterval: time.Second}, nil
}

// command returns a command line for the user, with the session's flags.
func (s *Session) command(words string) string {
	return s.Program + " " + words + " -n " + s.Namespace + s.Flags
}

func (s *Session) rendering() render.Renderer {
	return render.Renderer{Color: s.Color, Namespace: s.Namespace}
}

func (s *Session) printf(format string, args ...any) { fmt.Fprintf(s.Out, format, args...) }

// infof prints a message to Err.
func (s *Session) infof(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }
