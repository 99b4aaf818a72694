//go:build unix && !linux

package plugin

import (
	"errors"
	"runtime"

	"github.com/atoll-dev/atoll/infra/containment"
)

func thisMachine() *containment.Machine { return &containment.Machine{System: runtime.GOOS} }

// confine fails: containment.Decide has rejected this system before.
func confine(containment.Profile) error {
	return errors.New("only Linux has the means to contain a provider")
}

func openProgram(string) (int, error) { return -1, nil }

func execute(launcherRequest, int) error {
	return errors.New("providers are launched on Linux only")
}
