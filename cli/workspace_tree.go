package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func newWorkspaceTreeCommand() *cobra.Command {
	var atoll target
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show all workspaces below the current one",
		Long:  `Show all workspaces below the current one, with their phases. Those that you may not list are left out.`,
		Example: `  atoll workspace tree
  atoll workspace tree -w root`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := atoll.config()
			if err != nil {
				return err
			}
			_, current := splitWorkspaceURL(config.Host)
			if isTree(current) { // the tree has all levels anyway
				current = treeTop(current)
				atoll.workspace = cmp.Or(current, rootWorkspace)
			}
			list := func(ctx context.Context, path string) ([]v1alpha1.Workspace, error) {
				client, err := atoll.workspacesBelow(path)
				if err != nil {
					return nil, err
				}
				return listWorkspaces(ctx, client)
			}
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, cmp.Or(current, rootWorkspace))
			return printTree(cmd.Context(), out, list, current, "")
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	atoll.addPlainFlags(flags)
	return cmd
}

// printTree prints the workspaces below one, each with those below it. An error for one of them does not hide the others.
func printTree(ctx context.Context, out io.Writer, list func(context.Context, string) ([]v1alpha1.Workspace, error), path, indent string) error {
	all, err := list(ctx, path)
	if path != "" && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		return nil // it is going, or its workspaces are not for this user
	}
	if err != nil {
		return fmt.Errorf("workspace %s: %w", cmp.Or(path, rootWorkspace), err)
	}
	slices.SortFunc(all, func(a, b v1alpha1.Workspace) int { return cmp.Compare(a.Name, b.Name) })
	var failed []error
	for i, w := range all {
		branch, below := "├── ", "│   "
		if i == len(all)-1 {
			branch, below = "└── ", "    "
		}
		note := ""
		if w.Status.Phase != v1alpha1.WorkspaceReady {
			note = fmt.Sprintf(" (%s)", cmp.Or(string(w.Status.Phase), "Pending"))
		}
		fmt.Fprintf(out, "%s%s%s%s\n", indent, branch, w.Name, note)
		child := w.Name
		if path != "" {
			child = path + ":" + w.Name
		}
		if w.Status.Phase == v1alpha1.WorkspaceReady {
			failed = append(failed, printTree(ctx, out, list, child, indent+below))
		}
	}
	return errors.Join(failed...)
}
