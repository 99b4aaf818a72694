package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func newWorkspaceMoveCommand() *cobra.Command {
	var (
		atoll   target
		use     bool
		dryRun  bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "move SOURCE DESTINATION",
		Short: "Move a workspace to another path, with everything in it",
		Long: `Give a workspace another name, another workspace above it, or both, and wait until it is served there. Everything in
it stays: objects, roles, tokens, and the workspaces in it. Nothing is copied. Its requests and watches end; clients go on at the
new URL. The former path is free for another workspace.

You need the permission to delete the Workspace at its former place, and to create one at the new one. APIBindings of other
workspaces to its APIExports have no effect after the move: create them again.

` + workspacePathHelp,
		Example: `  atoll workspace move team-a team-b --dry-run
  atoll workspace move team-a platform:team-a
  atoll workspace move team-a:staging staging --use`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, _, err := atoll.workspaceObject(args[0])
			if err != nil {
				return err
			}
			to, client, err := atoll.workspaceObject(args[1])
			if err != nil {
				return err
			}
			var plan strings.Builder // read before the move begins, and printed if it may
			if err := atoll.printMove(cmd.Context(), &plan, from, to); err != nil {
				return err
			}
			options := metav1.CreateOptions{}
			if dryRun {
				options.DryRun = []string{metav1.DryRunAll}
			}
			desired := workspaceMove(from, to)
			if _, err := client.Create(cmd.Context(), desired, options); apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("move workspace %s: there is a workspace %s already: choose another path, or delete that one", from, to)
			} else if err != nil {
				return fmt.Errorf("move workspace %s: %w", from, err)
			}
			fmt.Fprint(cmd.ErrOrStderr(), plan.String())
			if !dryRun {
				if err := awaitWorkspace(cmd.Context(), client, desired.GetName(), timeout, moveProgress(cmd.ErrOrStderr(), to)); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "workspace/%s moved to %s%s\n", from, to, dryRunNote(dryRun))
			if use && !dryRun {
				return atoll.useWorkspace(cmd.Context(), cmd.OutOrStdout(), to)
			}
			if !dryRun {
				return atoll.noteFormerPath(cmd.ErrOrStderr(), from, to)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&use, "use", false, "Switch the kubeconfig to the new path, as atoll workspace use does. Without it, contexts that have the former path stay as they are.")
	flags.DurationVar(&timeout, "timeout", 5*time.Minute, "How long to wait until the workspace is served at its new path.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

// workspaceMove returns the Workspace that another one moves to.
func workspaceMove(from, to string) *unstructured.Unstructured {
	_, name := splitWorkspacePath(to)
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Workspace",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"source": map[string]any{"moveFrom": from}}}}
}

// printMove prints the former and the new path of a workspace, and of each one in it that the user may list.
func (t *target) printMove(ctx context.Context, out io.Writer, from, to string) error {
	config, err := t.config()
	if err != nil {
		return err
	}
	root, _ := splitWorkspaceURL(config.Host)
	fmt.Fprintf(out, "workspace/%s moves to %s\n", from, workspaceURL(root, to))
	return printMovedBelow(ctx, out, t.workspacesIn, from, to)
}

// noteFormerPath tells the user if the present context has a path that has moved.
func (t *target) noteFormerPath(out io.Writer, from, to string) error {
	config, err := t.config()
	if err != nil {
		return err
	}
	if _, current := splitWorkspaceURL(config.Host); current == from || strings.HasPrefix(current, from+":") {
		fmt.Fprintf(out, "The kubeconfig's context has the former path. To switch: atoll workspace use %s\n", to+strings.TrimPrefix(current, from))
	}
	return nil
}

// workspacesIn returns the Workspaces in the one with that path.
func (t *target) workspacesIn(ctx context.Context, path string) ([]v1alpha1.Workspace, error) {
	client, err := t.workspacesBelow(path)
	if err != nil {
		return nil, err
	}
	return listWorkspaces(ctx, client)
}

// printMovedBelow prints the workspaces in one that moves. Those that the user may not list move too.
func printMovedBelow(ctx context.Context, out io.Writer, list func(context.Context, string) ([]v1alpha1.Workspace, error), from, to string) error {
	all, err := list(ctx, from)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil // the server says why it cannot move, if so
	}
	if err != nil {
		return fmt.Errorf("workspaces in %s: %w", from, err)
	}
	for _, w := range all {
		fmt.Fprintf(out, "workspace/%s:%s moves to %s:%s\n", from, w.Name, to, w.Name)
		if err := printMovedBelow(ctx, out, list, from+":"+w.Name, to+":"+w.Name); err != nil {
			return err
		}
	}
	return nil
}

// stopsMove are reasons of the condition Ready that waiting does not change.
var stopsMove = []string{"SourceNotFound", "SourceMoves", "SourceProtected", "DestinationInSource", "TooDeep", "TooManyWorkspaces"}

// moveProgress prints what a move waits for, each message once. The returned function returns an error if the move needs a user.
func moveProgress(out io.Writer, path string) func(ready metav1.Condition) error {
	progress := copyProgress(out, path)
	return func(ready metav1.Condition) error {
		if slices.Contains(stopsMove, ready.Reason) {
			return fmt.Errorf("workspace %s is not served: %s", path, ready.Message)
		}
		return progress(ready)
	}
}
