package join

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/fleet"
)

// packKubeconfig makes a self-contained kubeconfig from one context of a kubeconfig. It inlines
// certificates, keys and tokens from files, and drops everything else. Relative paths are resolved
// against dir. An empty context means the current one.
func packKubeconfig(data []byte, context, dir string) ([]byte, error) {
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
	if err := fleet.SelfContained(cfg); err != nil {
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
