package cli

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func newWorkspaceCopyCommand() *cobra.Command {
	var (
		atoll   target
		use     bool
		dryRun  bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "copy SOURCE PATH",
		Short: "Create a workspace as a copy of another one",
		Long: `Create a workspace with the objects that another one has now, and wait until it is served. The source stays in use. You
get the role cluster-admin in the copy, and need all permissions in the source: the copy has its Secrets. Workspaces in the
source are not copied. Tokens of one workspace are not valid in the other one.

Both workspaces must be in the same one, or in the root.

` + workspacePathHelp,
		Example: `  atoll workspace copy team-a team-a-test
  atoll workspace copy team-a:staging team-a:staging-2 --use`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, _, err := atoll.workspaceObject(args[0])
			if err != nil {
				return err
			}
			path, client, err := atoll.workspaceObject(args[1])
			if err != nil {
				return err
			}
			desired, err := workspaceCopy(from, path)
			if err != nil {
				return err
			}
			options := metav1.CreateOptions{}
			if dryRun {
				options.DryRun = []string{metav1.DryRunAll}
			}
			if _, err := client.Create(cmd.Context(), desired, options); err != nil {
				return fmt.Errorf("copy workspace %s: %w", from, err)
			}
			if !dryRun {
				if err := awaitWorkspace(cmd.Context(), client, desired.GetName(), timeout, copyProgress(cmd.ErrOrStderr(), path)); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "workspace/%s created as a copy of %s%s\n", path, from, dryRunNote(dryRun))
			if use && !dryRun {
				return atoll.useWorkspace(cmd.Context(), cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&use, "use", false, "Switch the kubeconfig to the copy, as atoll workspace use does.")
	flags.DurationVar(&timeout, "timeout", time.Hour, "How long to wait until the copy is served.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

// workspaceCopy returns the Workspace with that path as a copy of another one.
func workspaceCopy(from, path string) (*unstructured.Unstructured, error) {
	above, name := splitWorkspacePath(path)
	parent, source := splitWorkspacePath(from)
	if above != parent {
		return nil, fmt.Errorf("workspace %s cannot be copied to %s: both must be in the same workspace", from, path)
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Workspace",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"source": map[string]any{"name": source}}}}, nil
}

// stopsCopy are reasons of the condition Ready that waiting does not change.
var stopsCopy = []string{"LimitExceeded", "SourceNotFound"}

// copyProgress prints how far a copy is, each message once. The returned function returns an error if the copy needs a user.
func copyProgress(out io.Writer, path string) func(ready metav1.Condition) error {
	last := ""
	return func(ready metav1.Condition) error {
		if slices.Contains(stopsCopy, ready.Reason) {
			return fmt.Errorf("workspace %s is not served: %s", path, ready.Message)
		}
		if ready.Message != last && ready.Status != metav1.ConditionTrue {
			last = ready.Message
			fmt.Fprintf(out, "workspace/%s: %s\n", path, ready.Message)
		}
		return nil
	}
}
