// Package cli implements the command line, with one file per command. Commands parse
// flags and print results; other packages do the work.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Main runs the command line args, whose first element is the program's name, and
// returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := interruptible()
	defer stop()

	root := New(filepath.Base(args[0]))
	root.SetArgs(args[1:])
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case errors.Is(err, errMoves) || errors.Is(err, errChanges):
		return 2
	case err != nil:
		fmt.Fprintln(stderr, "error: "+strings.TrimSpace(inSameWorkspace(cmd, err.Error())))
		return 1
	}
	return 0
}

// Run runs one command, given by the arguments after "atoll", until it is done or ctx
// ends. It is for programs that embed this one.
func Run(ctx context.Context, args []string) error {
	root := New("atoll")
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// New builds the command tree. For the program kubectl-atoll, help texts show "kubectl
// atoll", which is what its users type.
func New(program string) *cobra.Command {
	name := "atoll"
	annotations := map[string]string{}
	if strings.HasPrefix(program, "kubectl-") {
		annotations[cobra.CommandDisplayNameAnnotation] = "kubectl atoll"
	}
	root := &cobra.Command{
		Use:         name,
		Annotations: annotations,
		Short:       "One control plane for a whole fleet",
		Long: `Atoll is a Kubernetes-style control plane for a fleet of clusters. Apply an app
to it once; it runs in the member clusters, and its status comes back.`,
		SilenceErrors: true, // Main prints them, once
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // checked by onlySubcommands
		RunE:          onlySubcommands,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// The flag may belong to a command that does not exist.
		if before := cmd.Flags().Args(); cmd.HasSubCommands() && len(before) > 0 {
			return onlySubcommands(cmd, before)
		}
		return fmt.Errorf("%w\nSee '%s --help' for usage", flagError(err), cmd.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newServerCommand(),
		newKubeconfigCommand(),
		newKeysCommand(),
		newJoinCommand(),
		newLeaveCommand(),
		newAdoptCommand(),
		newSyncerCommand(),
		newClustersCommand(),
		newExposeCommand(),
		newUnexposeCommand(),
		newWorkspaceCommand(),
		newAPICommand(),
		newGetCommand(),
		newExplainCommand(),
		newPreviewCommand(),
		newRebalanceCommand(),
		newMoveCommand(),
		newCordonCommand(),
		newUncordonCommand(),
		newDrainCommand(),
		newReplaceCommand(),
		newTransitionsCommand(),
		newPauseCommand(),
		newResumeCommand(),
		newAbortCommand(),
		newRetryCommand(),
		newPlanCommand(),
		newShowCommand(),
		newApproveCommand(),
		newApplyCommand(),
		newCancelCommand(),
		newDestroyCommand(),
		newDriftCommand(),
		newRollbackCommand(),
		newGraphCommand(),
		newImportCommand(),
		newMoveStateCommand(),
		newExportCommand(),
		newInterpretCommand(),
		newKVCommand(),
		newProviderKeeperCommand(),
		newProviderLauncherCommand(),
		newVersionCommand(),
	)
	return root
}

// onlySubcommands is the RunE of a command that only has subcommands: it prints the
// help, and rejects a misspelt subcommand.
func onlySubcommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	meant := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		meant = fmt.Sprintf("; did you mean %s?", strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown command %q%s\nSee '%s --help' for usage", args[0], meant, cmd.CommandPath())
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels, so that
// commands stop gracefully. The second one kills the process, because the default
// handler is restored.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// flagError describes the expected value of a flag, instead of the library's parser
// error.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	flag := invalid.GetFlag()
	expected := map[string]string{
		"int": "an integer", "int32": "an integer", "int64": "an integer", "uint16": "an integer", "float32": "a number", "float64": "a number",
		"duration": "a duration, such as 30s or 5m", "bool": "true or false",
	}[flag.Value.Type()]
	if expected == "" {
		return err
	}
	return fmt.Errorf("invalid value %q for --%s: must be %s", invalid.GetValue(), flag.Name, expected)
}
