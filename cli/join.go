package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet"
)

func newJoinCommand() *cobra.Command {
	var (
		atoll      target
		kubeconfig string
		mode       = modePush
		pulls      pull
		options    fleet.JoinOptions
		timeout    = 2 * time.Minute
	)
	cmd := &cobra.Command{
		Use:   "join NAME (--kubeconfig FILE | --mode pull)",
		Short: "Register a cluster as a member of the fleet",
		Long: `Register a cluster as a member of the fleet, and wait until it is Ready.

--kubeconfig and --context say how Atoll reaches the member; what the kubeconfig
refers to in files is copied, and all of it kept in a Secret. Joining again
under the same name renews it.

With --mode pull Atoll needs no access to the member. A syncer that runs there, or
anywhere else, gets what is bound to the cluster; this command prints the manifests
that run it, with a credential that is good for nothing else. Joining again revokes
those that were handed out before.`,
		Example: `  # A cluster that a kubeconfig of its own leads to
  atoll join east --kubeconfig east.kubeconfig

  # One context of a larger kubeconfig, into an Atoll that is not kubectl's current one
  atoll join west --kubeconfig ~/.kube/config --context west --atoll-kubeconfig admin.kubeconfig

  # A cluster that Atoll cannot reach, or should not
  atoll join north --mode pull --server https://atoll.example.com:6443 | kubectl --context north apply -f -`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkMode(cmd, mode); err != nil {
				return err
			}
			if mode == modePull {
				config, err := atoll.config()
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				defer cancel()
				return pulls.join(ctx, cmd, config, args[0])
			}
			if kubeconfig == "" {
				return errNoKubeconfig
			}
			content, err := os.ReadFile(kubeconfig)
			if err != nil {
				return fmt.Errorf("read the cluster's kubeconfig: %w", err)
			}
			config, err := atoll.config()
			if err != nil {
				return err
			}
			options.Name, options.Kubeconfig, options.Dir = args[0], content, filepath.Dir(kubeconfig)
			options.Progress = progress(cmd)
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := fleet.Join(ctx, config, options); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s joined\n", args[0])
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig that leads to the cluster.")
	flags.StringVar(&options.Context, "context", "", "Context in that kubeconfig. The default is its current context.")
	flags.StringVar(&mode, "mode", mode, "push, where Atoll reaches the cluster, or pull, where the cluster's syncer reaches Atoll.")
	pulls.addFlags(flags)
	flags.DurationVar(&timeout, "timeout", timeout, "How long to wait until the cluster is Ready.")
	atoll.addFlags(flags)
	return cmd
}

// progress prints what goes on to standard error, so that standard output
// holds the result alone.
func progress(cmd *cobra.Command) func(string) {
	return func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) }
}

// oneName wants exactly one argument and says what it is.
func oneName(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("no %s named: write %q", what, cmd.UseLine())
		case len(args) > 1:
			return fmt.Errorf("%d names given: name one %s", len(args), what)
		}
		return nil
	}
}
