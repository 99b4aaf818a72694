package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// PackKubeconfig makes a self-contained kubeconfig from one context of a kubeconfig. It inlines
// certificates, keys and tokens from files, and drops everything else. Relative paths are resolved
// against dir. An empty context means the current one.
func PackKubeconfig(data []byte, context, dir string) ([]byte, error) {
	cfg, err := clientcmd.Load(data)
	if err != nil {
		return nil, errors.New("cannot parse the kubeconfig: check that the file is a kubeconfig")
	}
	if context != "" {
		cfg.CurrentContext = context
	}
	if cfg.CurrentContext == "" {
		return nil, fmt.Errorf("the kubeconfig has no current context: name one with --context (%s)", contextNames(cfg))
	}
	if cfg.Contexts[cfg.CurrentContext] == nil {
		return nil, fmt.Errorf("the kubeconfig has no context %q: it has %s", cfg.CurrentContext, contextNames(cfg))
	}
	if err := clientcmdapi.MinifyConfig(cfg); err != nil {
		return nil, fmt.Errorf("context %q of the kubeconfig is incomplete: %w", cfg.CurrentContext, err)
	}
	// Paths are relative to the kubeconfig's directory.
	origin := filepath.Join(dir, "kubeconfig")
	for _, c := range cfg.Clusters {
		c.LocationOfOrigin = origin
	}
	for _, a := range cfg.AuthInfos {
		a.LocationOfOrigin = origin
	}
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return nil, fmt.Errorf("resolve the files that the kubeconfig references: %w", err)
	}
	if err := clientcmdapi.FlattenConfig(cfg); err != nil {
		return nil, fmt.Errorf("inline the files that the kubeconfig references: %w", err)
	}
	for _, a := range cfg.AuthInfos {
		if a.TokenFile == "" {
			continue
		}
		token, err := os.ReadFile(a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("inline the token file that the kubeconfig references: %w", err)
		}
		a.Token, a.TokenFile = strings.TrimSpace(string(token)), ""
	}
	if err := selfContained(cfg); err != nil {
		return nil, err
	}
	return clientcmd.Write(*cfg)
}

func contextNames(cfg *clientcmdapi.Config) string {
	if len(cfg.Contexts) == 0 {
		return "no contexts"
	}
	names := make([]string, 0, len(cfg.Contexts))
	for name := range cfg.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// selfContained rejects a kubeconfig that would make the server run programs or read files of its
// own machine. Any user who may write the Secret could cause that.
func selfContained(cfg *clientcmdapi.Config) error {
	const remedy = "use a service-account token or a client certificate instead, for example of a ServiceAccount made for Atoll in the cluster (`kubectl create token`)"
	for name, a := range cfg.AuthInfos {
		switch {
		case a.Exec != nil:
			return fmt.Errorf("user %q of the kubeconfig runs a program (exec: %s), which the server does not allow: %s", name, a.Exec.Command, remedy)
		case a.AuthProvider != nil:
			return fmt.Errorf("user %q of the kubeconfig uses auth-provider %s, which the server does not support: %s", name, a.AuthProvider.Name, remedy)
		case a.TokenFile != "" || a.ClientCertificate != "" || a.ClientKey != "":
			return fmt.Errorf("user %q of the kubeconfig references files, which the server does not read: inline them (`kubectl config view --raw --flatten`)", name)
		}
	}
	for name, c := range cfg.Clusters {
		if c.CertificateAuthority != "" {
			return fmt.Errorf("cluster %q of the kubeconfig references a CA file, which the server does not read: inline it (`kubectl config view --raw --flatten`)", name)
		}
		if c.Server == "" {
			return fmt.Errorf("cluster %q of the kubeconfig has no server: set clusters[].cluster.server", name)
		}
	}
	return nil
}

// MemberConfig returns the client configuration of a member from a packed kubeconfig.
func MemberConfig(data []byte) (*rest.Config, error) {
	cfg, err := clientcmd.Load(data)
	if err != nil {
		// The parser's error may quote the file, which holds secrets.
		return nil, errors.New("it cannot be parsed: join the cluster again with `atoll join`")
	}
	if err := selfContained(cfg); err != nil {
		return nil, err
	}
	out, err := clientcmd.NewDefaultClientConfig(*cfg, &clientcmd.ConfigOverrides{}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("it is empty: join the cluster again with `atoll join`")
	case err != nil:
		return nil, fmt.Errorf("it is incomplete: %w: join the cluster again with `atoll join`", err)
	}
	return out, nil
}
