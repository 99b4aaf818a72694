// Package terminal is infrastructure for people: it has plans made, follows them, shows what
// they would do, asks, approves, has them carried out, and follows that. Its words end up
// before somebody's eyes, so each error says what can be done about it.
//
// It knows Atoll by its API alone: plans, approvals and applies are objects, and their changes a
// subresource. It decides nothing that the servers do not decide again.
package terminal

import (
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/infra/plan"
)

// Session is somebody who works in a namespace of an Atoll. It is for one command at a time.
type Session struct {
	Dynamic   dynamic.Interface
	Discovery discovery.DiscoveryInterface
	Namespace string

	// In is where answers come from. Nobody is asked unless Attended.
	In       io.Reader
	Attended bool
	// Out is for the result, Err for what goes on meanwhile.
	Out, Err io.Writer
	// Color is for Out, Live of an Err on which lines can be drawn again.
	Color, Live bool
	// Program is what the user types to run this: "atoll", or "kubectl atoll". Flags are what has to be
	// typed behind it again to reach the same Atoll.
	Program, Flags string

	Clock clock.Clock
	// Every is how often something is looked at that takes long.
	Every time.Duration
}

// Connect gives a Session with the clients for a configuration. The rest of it is for the caller to fill in.
func Connect(config *rest.Config) (*Session, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1 // the server has its own fairness, and a page of changes is a request
	// A thousand objects with the same deprecated argument are one warning.
	config.WarningHandler = rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	return &Session{Dynamic: dyn, Discovery: disco, Clock: clock.RealClock{}, Every: time.Second}, nil
}

// command is what to type, with what has to stand behind it.
func (s *Session) command(words string) string {
	return s.Program + " " + words + " -n " + s.Namespace + s.Flags
}

func (s *Session) rendering() plan.Renderer {
	return plan.Renderer{Color: s.Color, Namespace: s.Namespace}
}

func (s *Session) printf(format string, args ...any) { fmt.Fprintf(s.Out, format, args...) }

// tell says on Err what goes on.
func (s *Session) tell(format string, args ...any) { fmt.Fprintf(s.Err, format+"\n", args...) }
