package cli

import (
	"sync/atomic"

	"github.com/spf13/cobra"
)

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Work with keyspaces directly",
		RunE:  onlySubcommands,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Name() == "serve" {
				return nil
			}
			// gRPC would log the errors that the command reports itself.
			_, err := setLogging(cmd.ErrOrStderr(), 0, new(atomic.Bool))
			return err
		},
	}
	cmd.AddCommand(
		newKVServeCommand(),
		newKVStatusCommand(),
		newKVDumpCommand(),
		newKVCompactCommand(),
		newKVCheckCommand(),
		newKVCopyCommand(),
		newKVBackupCommand(),
		newKVRestoreCommand(),
		newKVRecoverCommand(),
		newKVSplitCommand(),
		newKVMergeCommand(),
	)
	return cmd
}
