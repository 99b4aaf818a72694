package cli

import (
	"github.com/spf13/cobra"
)

func newKVCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kv",
		Short: "Work with keyspaces directly",
		RunE:  onlySubcommands,
	}
	cmd.AddCommand(newKVServeCommand())
	return cmd
}
