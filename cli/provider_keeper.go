package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/plugin"
)

// KeeperCommand is the command that a server starts for each provider. A program that
// embeds the server must act as a keeper when this is its only argument.
const KeeperCommand = "provider-keeper"

func newProviderKeeperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    KeeperCommand,
		Hidden: true, // only servers use it
		Short:  "Supervise a provider, so that running operations finish if the server is killed",
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return plugin.Keep() },
	}
}

// keeper returns the command that starts this program as a keeper.
func keeper() ([]string, error) {
	// This path always refers to the running program, even after its file on disk is
	// replaced.
	const itself = "/proc/self/exe"
	if _, err := os.Stat(itself); err == nil {
		return []string{itself, KeeperCommand}, nil
	}
	path, err := os.Executable()
	return []string{path, KeeperCommand}, err
}
