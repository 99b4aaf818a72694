package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

func newKubeconfigCommand() *cobra.Command {
	var (
		dir    = defaultDataDir()
		server string
	)
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the kubeconfig of a server's administrator",
		Long: `Print the kubeconfig of a server's administrator, from its data directory.

Use it where the file cannot be read otherwise, as in a container without a shell.`,
		Example: `  atoll kubeconfig --data-dir /var/lib/atoll
  kubectl exec --namespace atoll-system deployment/atoll -- /atoll kubeconfig --data-dir /var/lib/atoll --server https://atoll.example.com > atoll.kubeconfig`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			content, err := adminKubeconfig(dir, server)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(content)
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&dir, "data-dir", dir, "Data directory of the server.")
	flags.StringVar(&server, "server", "", "Server URL to set in the kubeconfig. Its host must be in the server's certificate (--tls-name). The default URL works only on the server's own machine.")
	return cmd
}

// adminKubeconfig reads the administrator's kubeconfig from a data directory, and sets
// its server URL if one is given.
func adminKubeconfig(dir, server string) ([]byte, error) {
	file := filepath.Join(dir, "admin.kubeconfig")
	config, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the administrator's kubeconfig: %w: set --data-dir to a server's data directory. The server writes the file when it starts", err)
	case err != nil:
		return nil, fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	if server != "" {
		if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("server %q is not an HTTPS URL: use a form such as https://atoll.example.com:6443", server)
		}
		for _, cluster := range config.Clusters {
			cluster.Server = server
		}
	}
	return clientcmd.Write(*config)
}
