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

// LauncherCommand is the command that a server starts to become a provider. A program that
// embeds the server must act as a launcher when this is its only argument.
const LauncherCommand = "provider-launcher"

func newProviderLauncherCommand() *cobra.Command {
	return &cobra.Command{
		Use:    LauncherCommand,
		Hidden: true, // only servers and keepers use it
		Short:  "Restrict this process and become a provider",
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return plugin.Launch() },
	}
}

// itself returns the command that starts this program with an argument.
func itself(argument string) ([]string, error) {
	// This path always refers to the running program, even after its file on disk is
	// replaced.
	const running = "/proc/self/exe"
	if _, err := os.Stat(running); err == nil {
		return []string{running, argument}, nil
	}
	path, err := os.Executable()
	return []string{path, argument}, err
}
