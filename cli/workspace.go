package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func newWorkspaceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "workspace",
		Aliases: []string{"workspaces", "ws"},
		Short:   "Create, list and use workspaces",
		Long: `Create, list and use workspaces: isolated APIs below /clusters/PATH of a server, each with objects, RBAC and
accounts of its own.

` + workspacePathHelp,
		Args: cobra.ArbitraryArgs,
		RunE: onlySubcommands,
	}
	cmd.AddCommand(newWorkspaceCreateCommand(), newWorkspaceCopyCommand(), newWorkspaceMoveCommand(), newWorkspaceListCommand(), newWorkspaceTreeCommand(), newWorkspaceTopCommand(), newWorkspaceUseCommand(), newWorkspaceDeleteCommand(),
		newWorkspaceBackupCommand(), newWorkspaceRestoreCommand())
	return cmd
}

func newWorkspaceCreateCommand() *cobra.Command {
	var (
		atoll    target
		use      bool
		typeName string
		placed   string
		dryRun   bool
		timeout  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create PATH",
		Short: "Create a workspace",
		Long: `Create a workspace and wait until it is served. You get the role cluster-admin in it.

` + workspacePathHelp,
		Example: `  atoll workspace create team-a
  atoll workspace create team-a:staging
  atoll workspace create team-a --use
  atoll workspace create team-a --type small
  atoll workspace create team-a --placement Parent`,
		Args: oneName("workspace"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, client, err := atoll.workspaceObject(args[0])
			if err != nil {
				return err
			}
			_, name := splitWorkspacePath(path)
			desired := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Workspace",
				"metadata": map[string]any{"name": name}}}
			spec := map[string]any{}
			if typeName != "" {
				spec["type"] = typeName
			}
			if placed != "" {
				spec["placement"] = map[string]any{"from": placed}
			}
			desired.Object["spec"] = spec
			options := metav1.CreateOptions{}
			if dryRun {
				options.DryRun = []string{metav1.DryRunAll}
			}
			if _, err := client.Create(cmd.Context(), desired, options); err != nil {
				return fmt.Errorf("create workspace %s: %w", path, err)
			}
			if !dryRun {
				if err := awaitWorkspace(cmd.Context(), client, name, timeout, nil); err != nil {
					return err
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "workspace/%s created%s\n", path, dryRunNote(dryRun))
			if use && !dryRun {
				return atoll.useWorkspace(cmd.Context(), cmd.OutOrStdout(), path)
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&use, "use", false, "Switch the kubeconfig to the workspace, as atoll workspace use does.")
	flags.StringVar(&typeName, "type", "", "The WorkspaceType that the workspace begins with. Without it, it is the type default, if there is one.")
	flags.StringVar(&placed, "placement", "", "Parent lets its objects run in the clusters of the API that has the Workspace. Without it, they run in clusters that join the workspace.")
	flags.DurationVar(&timeout, "timeout", time.Minute, "How long to wait until the workspace is served.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

func newWorkspaceListCommand() *cobra.Command {
	var atoll target
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the workspaces directly below the current one, or below a tree",
		Example: "  atoll workspace list\n  atoll workspace list -w team-a\n  atoll workspace list -w 'team-a:*'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := atoll.listWorkspaces(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return printWorkspaces(cmd.OutOrStdout(), all, time.Now())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	atoll.addPlainFlags(flags)
	return cmd
}

// printWorkspaces prints a table, as kubectl get does.
func printWorkspaces(out io.Writer, all []v1alpha1.Workspace, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "No workspaces found")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "NAME\tPHASE\tOWNER\tAGE")
	for _, w := range all {
		owner := "<none>"
		if w.Spec.Owner != nil {
			owner = w.Spec.Owner.Username
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", w.Name, w.Status.Phase, cellText(owner), duration.HumanDuration(now.Sub(w.CreationTimestamp.Time)))
	}
	return table.Flush()
}

func newWorkspaceDeleteCommand() *cobra.Command {
	var (
		atoll   target
		dryRun  bool
		wait    bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "delete PATH...",
		Short: "Delete workspaces with all of their objects",
		Long: `Delete workspaces with all of their objects and all workspaces below them. Their requests end at once. There is no
way back but a backup.

` + workspacePathHelp,
		Example: "  atoll workspace delete team-a",
		Args:    atLeastOne("workspace"),
		RunE: func(cmd *cobra.Command, args []string) error {
			options := metav1.DeleteOptions{}
			if dryRun {
				options.DryRun = []string{metav1.DryRunAll}
			}
			var failed []error
			for _, given := range args {
				path, client, err := atoll.workspaceObject(given)
				if err != nil {
					failed = append(failed, err)
					continue
				}
				_, name := splitWorkspacePath(path)
				err = client.Delete(cmd.Context(), name, options)
				if err == nil && wait && !dryRun {
					err = awaitDeletion(cmd.Context(), client, name, timeout)
				}
				if err != nil {
					failed = append(failed, fmt.Errorf("delete workspace %s: %w", path, err))
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "workspace/%s deleted%s\n", path, dryRunNote(dryRun))
			}
			return errors.Join(failed...)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&wait, "wait", true, "Wait until the objects are removed.")
	flags.DurationVar(&timeout, "timeout", 5*time.Minute, "How long to wait.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

// workspaceObject returns the path that a user means, and a client of the API that has its Workspace.
func (t *target) workspaceObject(given string) (path string, in dynamic.ResourceInterface, err error) {
	config, err := t.config()
	if err != nil {
		return "", nil, err
	}
	root, current := splitWorkspaceURL(config.Host)
	if path, err = workspacePath(current, given); err != nil {
		return "", nil, err
	}
	if path == "" {
		return "", nil, errors.New("the root is not a workspace that can be created or deleted")
	}
	above, _ := splitWorkspacePath(path)
	config.Host = workspaceURL(root, above)
	in, err = workspacesOf(config)
	return path, in, err
}

// workspacesBelow returns a client of the Workspaces directly below one; "" is the current one.
func (t *target) workspacesBelow(path string) (dynamic.ResourceInterface, error) {
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	if path != "" {
		root, _ := splitWorkspaceURL(config.Host)
		config.Host = workspaceURL(root, path)
	}
	return workspacesOf(config)
}

func workspacesOf(config *rest.Config) (dynamic.ResourceInterface, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(v1alpha1.WorkspaceResource), nil
}

// listWorkspaces returns all Workspaces of an API. Those of a tree have their paths as names.
func listWorkspaces(ctx context.Context, client dynamic.ResourceInterface) ([]v1alpha1.Workspace, error) {
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list workspaces: %w", err)
	}
	all := make([]v1alpha1.Workspace, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &all[i]); err != nil {
			return nil, fmt.Errorf("read workspace %s: %w", list.Items[i].GetName(), err)
		}
		if above := all[i].Annotations[v1alpha1.WorkspaceAnnotation]; above != "" {
			all[i].Name = above + ":" + all[i].Name
		}
	}
	return all, nil
}

// listWorkspaces returns the Workspaces directly below the current one. For a tree it returns all below its top, by their paths. The tree has no objects of the
// top itself, so those directly below it are read there; warnings gets a note if the user may not.
func (t *target) listWorkspaces(ctx context.Context, warnings io.Writer) ([]v1alpha1.Workspace, error) {
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	client, err := workspacesOf(config)
	if err != nil {
		return nil, err
	}
	all, err := listWorkspaces(ctx, client)
	root, current := splitWorkspaceURL(config.Host)
	if err != nil || !isTree(current) {
		return all, err
	}
	byPath := func(a, b v1alpha1.Workspace) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(all, byPath)
	top := treeTop(current)
	above := rest.CopyConfig(config)
	above.Host = workspaceURL(root, top)
	if client, err = workspacesOf(above); err != nil {
		return nil, err
	}
	direct, err := listWorkspaces(ctx, client)
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(warnings, "Warning: the workspaces directly below %s are not listed: you need the verb list on workspaces there: %v\n", cmp.Or(top, rootWorkspace), err)
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range direct {
		if top != "" {
			direct[i].Name = top + ":" + direct[i].Name
		}
	}
	all = append(direct, all...)
	slices.SortFunc(all, byPath)
	return all, nil
}

// awaitWorkspace waits until a workspace is served. observe gets the condition Ready while it is not, and may end the wait with an error; nil
// observes nothing.
func awaitWorkspace(ctx context.Context, client dynamic.ResourceInterface, name string, timeout time.Duration, observe func(metav1.Condition) error) error {
	reason := "no server has created it yet"
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		u, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		w := &v1alpha1.Workspace{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, w); err != nil {
			return false, err
		}
		if c := meta.FindStatusCondition(w.Status.Conditions, v1alpha1.WorkspaceReadyCondition); c != nil {
			reason = c.Message
			if observe != nil {
				if err := observe(*c); err != nil {
					return false, err
				}
			}
		}
		return w.Status.Phase == v1alpha1.WorkspaceReady, nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("workspace %s is created, but not served yet: %s", name, reason)
	}
	return err
}

// awaitDeletion waits until a workspace is gone.
func awaitDeletion(ctx context.Context, client dynamic.ResourceInterface, name string, timeout time.Duration) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if wait.Interrupted(err) {
		return errors.New("it is being deleted, but its objects are not removed yet")
	}
	return err
}
