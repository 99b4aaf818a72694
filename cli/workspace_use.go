package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func newWorkspaceUseCommand() *cobra.Command {
	var atoll target
	cmd := &cobra.Command{
		Use:   "use PATH",
		Short: "Switch the kubeconfig to a workspace",
		Long: `Switch the kubeconfig to a workspace: kubectl and all other clients use it from then on. The context is named after
the present one.

` + workspacePathHelp,
		Example: `  atoll workspace use team-a
  atoll workspace use :staging
  atoll workspace use ..
  atoll workspace use '*'          # to read all workspaces below the root
  atoll workspace use 'team-a:*'   # to read all workspaces below team-a
  atoll workspace use root`,
		Args: oneName("workspace"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return atoll.useWorkspace(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	atoll.addPlainFlags(flags)
	return cmd
}

// useWorkspace switches the kubeconfig to a workspace that answers.
func (t *target) useWorkspace(ctx context.Context, out io.Writer, path string) error {
	loading := t.loading()
	config, err := loading.RawConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	if t.context != "" {
		config.CurrentContext = t.context
	}
	if err := switchWorkspace(&config, t.workspace, path); err != nil {
		return err
	}
	switched := config.Contexts[config.CurrentContext]
	_, path = splitWorkspaceURL(config.Clusters[switched.Cluster].Server)
	restConfig, err := clientcmd.NewNonInteractiveClientConfig(config, config.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("use workspace %s: %w", path, err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(restConfig)
	if err != nil {
		return err
	}
	if _, err := client.ServerVersion(); apierrors.IsNotFound(err) {
		return fmt.Errorf("workspace %s does not exist: atoll workspace tree shows those that do", path)
	} else if err != nil {
		return fmt.Errorf("use workspace %s: %w", cmp.Or(path, rootWorkspace), err)
	}
	if err := clientcmd.ModifyConfig(loading.ConfigAccess(), config, true); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	_, err = fmt.Fprintf(out, "Switched to context %q.\n", config.CurrentContext)
	return err
}

// switchWorkspace makes a context of a workspace the current one, and adds it if it is missing. It has the user and the certificate
// authority of the present context. The path counts from another workspace than that of the context, if from is not "".
func switchWorkspace(config *clientcmdapi.Config, from, path string) error {
	present := config.Contexts[config.CurrentContext]
	if present == nil {
		return errors.New("the kubeconfig has no current context: set --context")
	}
	cluster := config.Clusters[present.Cluster]
	if cluster == nil {
		return fmt.Errorf("the kubeconfig's context %q has no cluster: set --context to another one", config.CurrentContext)
	}
	root, current := splitWorkspaceURL(cluster.Server)
	counted := current
	if from != "" {
		var err error
		if counted, err = readablePath(current, from); err != nil {
			return fmt.Errorf("--workspace: %w", err)
		}
	}
	path, err := readablePath(counted, path)
	if err != nil {
		return err
	}
	base := strings.TrimSuffix(config.CurrentContext, ":"+current)
	if path == "" {
		name, found := contextOf(config, root, present.AuthInfo, base)
		if !found {
			return fmt.Errorf("the kubeconfig has no context for %s: use kubectl config use-context", root)
		}
		config.CurrentContext = name
		return nil
	}
	name := base + ":" + path
	of := cluster.DeepCopy()
	of.Server, of.LocationOfOrigin = workspaceURL(root, path), ""
	config.Clusters[name] = of
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: present.AuthInfo}
	config.CurrentContext = name
	return nil
}

// contextOf returns a context of a server and user, preferably one of a name.
func contextOf(config *clientcmdapi.Config, server, user, preferred string) (name string, found bool) {
	var names []string
	for name, c := range config.Contexts {
		if cluster := config.Clusters[c.Cluster]; cluster != nil && strings.TrimSuffix(cluster.Server, "/") == server && c.AuthInfo == user {
			names = append(names, name)
		}
	}
	if slices.Contains(names, preferred) {
		return preferred, true
	}
	if len(names) == 0 {
		return "", false
	}
	return slices.Min(names), true
}
