package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/infra/cliview"
)

func newJoinCommand() *cobra.Command {
	var (
		atoll      target
		kubeconfig string
		mode       = modePush
		pulls      pull
		options    join.Options
		timeout    = 2 * time.Minute
	)
	cmd := &cobra.Command{
		Use:   "join NAME (--kubeconfig FILE | --mode pull)",
		Short: "Register a cluster as a member of the fleet",
		Long: `Register a cluster as a member of the fleet, and wait until it is Ready.

--kubeconfig and --context specify how Atoll reaches the member. The kubeconfig and the
files that it refers to are copied to a Secret. To renew them, run join again with the
same name.

With --mode pull Atoll needs no access to the member. A syncer that runs there, or
anywhere else, reads the objects that are bound to the cluster. This command prints the
manifests that run the syncer, with a credential that is valid for nothing else. Joining
again revokes earlier credentials. In the cluster, the syncer may write the built-in kinds
with a namespace, except roles; --allow adds others.`,
		Example: `  # A cluster with its own kubeconfig
  atoll join east --kubeconfig east.kubeconfig

  # One context of a larger kubeconfig, into an Atoll other than kubectl's current context
  atoll join west --kubeconfig ~/.kube/config --context west --atoll-kubeconfig admin.kubeconfig

  # A cluster that Atoll cannot or should not reach
  atoll join north --mode pull --server https://atoll.example.com:6443 | kubectl --context north apply -f -

  # The same, with a token. The syncer makes its own key; approve its request with kubectl certificate approve
  atoll join north --mode pull --bootstrap --server https://atoll.example.com:6443 | kubectl --context north apply -f -

  # Let its syncer also sync a custom resource and PriorityClasses
  atoll join north --mode pull --roles-only --allow gadgets.kinds.example.com,priorityclasses.scheduling.k8s.io | kubectl --context north apply -f -`,
		Args: oneName("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkMode(cmd, mode); err != nil {
				return err
			}
			if err := pulls.roles.check(); err != nil {
				return err
			}
			if pulls.roles.only {
				return pulls.print(cmd, nil)
			}
			if mode == modePull {
				config, err := atoll.quietConfig()
				if err != nil {
					return err
				}
				if _, path := splitWorkspaceURL(config.Host); path != "" {
					return fmt.Errorf("mode pull is not available in workspace %s: use --mode push with a kubeconfig of the cluster that Atoll can use, or join the cluster in the root (-w root)", path)
				}
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				defer cancel()
				return askAboutRights(cmd, &options.AcceptRights, func() error { return pulls.join(ctx, cmd, config, args[0], options.Adopt, options.AcceptRights) })
			}
			if kubeconfig == "" {
				return errNoKubeconfig
			}
			content, err := os.ReadFile(kubeconfig)
			if err != nil {
				return fmt.Errorf("read the cluster's kubeconfig: %w: set --kubeconfig to a file that has access to %s", err, args[0])
			}
			config, err := atoll.quietConfig()
			if err != nil {
				return err
			}
			options.Name, options.Kubeconfig, options.Dir = args[0], content, filepath.Dir(kubeconfig)
			options.Progress = progress(cmd)
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := askAboutRights(cmd, &options.AcceptRights, func() error { return join.Push(ctx, config, options) }); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "cluster/%s joined\n", args[0])
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&kubeconfig, "kubeconfig", "", "Kubeconfig for the cluster.")
	flags.StringVar(&options.Context, "context", "", "Context in that kubeconfig. The default is the current context.")
	flags.BoolVar(&options.Adopt, "adopt", false, "Take over the objects that this Atoll left in the cluster when it left with --cascade=orphan, and put objects into namespaces that exist there. Other objects are never touched.")
	flags.StringVar(&mode, "mode", mode, "push (Atoll connects to the cluster) or pull (the cluster's syncer connects to Atoll).")
	flags.BoolVar(&options.AcceptRights, "yes", false, "Skip the confirmation prompt if another cluster had the name, and its users still have rights.")
	pulls.addFlags(flags)
	flags.DurationVar(&timeout, "timeout", timeout, "How long to wait until the cluster is Ready.")
	atoll.addFlags(flags)
	return cmd
}

// askAboutRights joins, and asks if the cluster would get the rights of another one that had its name.
func askAboutRights(cmd *cobra.Command, accept *bool, attempt func() error) error {
	err := attempt()
	rights, is := join.IsRights(err)
	if !is || !isTerminal(cmd.InOrStdin()) {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Another cluster had the name %s before. Its users still have rights in Atoll, which the users of this one would get:\n", rights.Cluster)
	for _, b := range rights.Bindings {
		fmt.Fprintf(cmd.ErrOrStderr(), "- %s\n", b)
	}
	s := cliview.Session{In: cmd.InOrStdin(), Err: cmd.ErrOrStderr(), Interactive: true}
	if err := s.Ask(cmd.Context(), "Let the users of this cluster have these rights?", "join "+rights.Cluster, "use --yes"); err != nil {
		return err
	}
	*accept = true
	return attempt()
}

// progress prints progress messages to standard error, so that standard output has only
// the result.
func progress(cmd *cobra.Command) func(string) {
	return func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) }
}

// oneName requires exactly one argument; what describes it.
func oneName(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("no %s specified. Usage: %s", what, cmd.UseLine())
		case len(args) > 1:
			return fmt.Errorf("expected one %s, got %d arguments", what, len(args))
		}
		return nil
	}
}
