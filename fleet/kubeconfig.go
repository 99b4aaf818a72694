package fleet

import (
	"errors"
	"fmt"
	"net"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// SelfContained rejects a kubeconfig that would make the server run programs or read files of its
// own machine. Any user who may write the Secret could cause that.
func SelfContained(cfg *clientcmdapi.Config) error {
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
	if err := SelfContained(cfg); err != nil {
		return nil, err
	}
	out, err := clientcmd.NewDefaultClientConfig(*cfg, &clientcmd.ConfigOverrides{}).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("it is empty: join the cluster again with `atoll join`")
	case err != nil:
		return nil, fmt.Errorf("it is incomplete: %w: join the cluster again with `atoll join`", err)
	}
	address, _, err := rest.DefaultServerUrlFor(out)
	switch {
	case err != nil:
		return nil, fmt.Errorf("its address %q is invalid: set clusters[].cluster.server to the URL of the API server", out.Host)
	case address.Scheme != "https" && !isLoopback(address.Hostname()):
		return nil, fmt.Errorf("its address %s has no TLS, so others in the network could read the credentials: set clusters[].cluster.server to an https:// URL", address.Redacted())
	}
	return out, nil
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
