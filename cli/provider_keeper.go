package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/infra/provider"
)

// KeeperCommand is the command that a server starts beside each provider. Whatever program contains the server
// has to be a keeper when this is its only argument.
const KeeperCommand = "provider-keeper"

func newProviderKeeperCommand() *cobra.Command {
	return &cobra.Command{
		Use:    KeeperCommand,
		Hidden: true, // nobody but a server can make use of it
		Short:  "Stand between a server and a provider, so that what was begun is finished when the server is killed",
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return provider.Keep() },
	}
}

// keeper is how this program is started as a keeper.
func keeper() ([]string, error) {
	// Where there is this name, it stays the program that runs, though another takes its place on disk.
	const itself = "/proc/self/exe"
	if _, err := os.Stat(itself); err == nil {
		return []string{itself, KeeperCommand}, nil
	}
	path, err := os.Executable()
	return []string{path, KeeperCommand}, err
}
