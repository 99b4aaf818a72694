package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

func newAPICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "api",
		Short: "Share APIs between workspaces",
		Long: `Share APIs between workspaces. One workspace exports resources that its CustomResourceDefinitions define, and others bind
to the export. They have the same kinds then, and objects of their own.`,
		Args: cobra.ArbitraryArgs,
		RunE: onlySubcommands,
	}
	cmd.AddCommand(newAPIExportCommand(), newAPIBindCommand())
	return cmd
}

func newAPIExportCommand() *cobra.Command {
	var (
		atoll     target
		resources []string
		dryRun    bool
	)
	cmd := &cobra.Command{
		Use:   "export NAME --resource RESOURCE.GROUP...",
		Short: "Export resources of a workspace to others",
		Long: `Export resources that CustomResourceDefinitions of the current workspace define. Other workspaces can bind to the export,
by users who have the verb bind for it here. A resource without a definition is exported as soon as there is one.`,
		Example: `  atoll api export databases --resource databases.example.com
  atoll api export databases --resource databases.example.com,backups.example.com -w apis`,
		Args: oneName("APIExport"),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := exportedResources(resources)
			if err != nil {
				return err
			}
			client, current, err := atoll.inWorkspace(v1alpha1.APIExportResource)
			if err != nil {
				return err
			}
			object := tenancyObject("APIExport", args[0], map[string]any{"resources": list})
			if err := createIn(cmd.Context(), cmd.OutOrStdout(), client, object, "apiexport", dryRun); err != nil {
				return err
			}
			definitions, _, err := atoll.inWorkspace(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
			if err != nil {
				return err
			}
			for _, r := range list {
				if warning := undefinedWarning(cmd.Context(), definitions, current, r); warning != "" {
					fmt.Fprintln(cmd.ErrOrStderr(), "Warning: "+warning)
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&resources, "resource", nil, "Resource to export, as RESOURCE.GROUP. Can be repeated.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

func newAPIBindCommand() *cobra.Command {
	var (
		atoll      target
		from, name string
		dryRun     bool
	)
	cmd := &cobra.Command{
		Use:   "bind (PATH:NAME | NAME --from PATH)",
		Short: "Bind a workspace to an export of another one",
		Long: `Bind the current workspace to the APIExport NAME of the workspace PATH. The current workspace has the exported resources then,
with objects of its own. The controllers of the exporter may see and change these objects, and nothing else.

` + workspacePathHelp,
		Example: `  atoll api bind apis:databases
  atoll api bind databases --from apis -w team-a`,
		Args: oneName("APIExport"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, current, err := atoll.inWorkspace(v1alpha1.APIBindingResource)
			if err != nil {
				return err
			}
			path, export, err := exportArgument(current, args[0], from)
			if err != nil {
				return err
			}
			if name == "" {
				name = export
			}
			object := tenancyObject("APIBinding", name, map[string]any{"export": map[string]any{"path": path, "name": export}})
			return createIn(cmd.Context(), cmd.OutOrStdout(), client, object, "apibinding", dryRun)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&from, "from", "", "Path of the workspace that has the APIExport.")
	flags.StringVar(&name, "name", "", "Name of the APIBinding. The default is that of the APIExport.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

// undefinedWarning returns a warning if the workspace has no definition of an exported resource, "" if it has. The warning
// also names a definition that cannot be read.
func undefinedWarning(ctx context.Context, definitions dynamic.ResourceInterface, workspace string, exported any) string {
	r, ok := exported.(map[string]any)
	if !ok {
		return ""
	}
	name := fmt.Sprintf("%v.%v", r["resource"], r["group"])
	_, err := definitions.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("workspace %q has no CustomResourceDefinition %s: the APIExport exports it as soon as there is one. Check the name, or create the definition", workspace, name)
	case err != nil:
		return fmt.Sprintf("whether workspace %q has the CustomResourceDefinition %s is not known: %v", workspace, name, err)
	}
	return ""
}

// exportedResources parses RESOURCE.GROUP arguments.
func exportedResources(given []string) ([]any, error) {
	if len(given) == 0 {
		return nil, errors.New("no resource to export: set --resource, such as --resource databases.example.com")
	}
	var out []any
	for _, text := range given {
		r := schema.ParseGroupResource(text)
		if r.Resource == "" || !strings.Contains(r.Group, ".") || len(validation.IsDNS1123Subdomain(text)) > 0 {
			return nil, fmt.Errorf("--resource %q is not RESOURCE.GROUP: use the name of the CustomResourceDefinition, such as databases.example.com", text)
		}
		out = append(out, map[string]any{"group": r.Group, "resource": r.Resource})
	}
	return out, nil
}

// exportArgument returns the workspace and the name of the APIExport that a user of a workspace means, by PATH:NAME, or by NAME and the
// flag --from.
func exportArgument(current, given, from string) (path, name string, err error) {
	i := strings.LastIndex(given, ":")
	path, name = given[:max(i, 0)], given[i+1:]
	switch {
	case i >= 0 && from != "":
		return "", "", fmt.Errorf("%q has the path of a workspace, and --from too: use one of them", given)
	case i < 0 && from == "":
		return "", "", fmt.Errorf("%q is the name of an APIExport: add the path of its workspace, as in apis:%s, or set --from", given, given)
	case i < 0:
		path = from
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return "", "", fmt.Errorf("%q is not the name of an APIExport: %s", name, problems[0])
	}
	if path, err = workspacePath(current, path); err != nil {
		return "", "", err
	}
	if path == "" {
		return "", "", errors.New("the root exports nothing: use the path of a workspace")
	}
	return path, name, nil
}

// inWorkspace returns a client of a resource of the current workspace, and the workspace's path. The root has no such resources.
func (t *target) inWorkspace(resource schema.GroupVersionResource) (dynamic.ResourceInterface, string, error) {
	config, err := t.config()
	if err != nil {
		return nil, "", err
	}
	_, current := splitWorkspaceURL(config.Host)
	if current == "" {
		return nil, "", fmt.Errorf("the root has no %s: set the workspace with -w PATH, or switch to it with atoll workspace use PATH", resource.Resource)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	return client.Resource(resource), current, nil
}

func tenancyObject(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": kind,
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

// createIn creates an object, and prints that as kubectl create does.
func createIn(ctx context.Context, out io.Writer, client dynamic.ResourceInterface, object *unstructured.Unstructured, what string, dryRun bool) error {
	options := metav1.CreateOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	name := fmt.Sprintf("%s.%s/%s", what, v1alpha1.Group, object.GetName())
	_, err := client.Create(ctx, object, options)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s: %w: delete it first, or use another name", name, err)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	_, err = fmt.Fprintf(out, "%s created%s\n", name, dryRunNote(dryRun))
	return err
}
