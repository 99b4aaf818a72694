package cli

import (
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestSwitchWorkspace: contexts of workspaces have the user and the certificate authority of the root's, and lead back to it.
func TestSwitchWorkspace(t *testing.T) {
	config := &clientcmdapi.Config{CurrentContext: "atoll",
		Clusters:  map[string]*clientcmdapi.Cluster{"atoll": {Server: "https://atoll:6443", CertificateAuthority: "ca.crt"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {}},
		Contexts:  map[string]*clientcmdapi.Context{"atoll": {Cluster: "atoll", AuthInfo: "me", Namespace: "shop"}}}
	for _, step := range []struct{ use, context, server string }{
		{"team-a", "atoll:team-a", "https://atoll:6443/clusters/team-a"},
		{"team-b", "atoll:team-b", "https://atoll:6443/clusters/team-b"},
		{"team-a", "atoll:team-a", "https://atoll:6443/clusters/team-a"},
		{"root", "atoll", "https://atoll:6443"},
		{"root", "atoll", "https://atoll:6443"},
	} {
		if err := switchWorkspace(config, step.use); err != nil {
			t.Fatal(err)
		}
		is := config.Contexts[config.CurrentContext]
		cluster := config.Clusters[is.Cluster]
		if config.CurrentContext != step.context || cluster.Server != step.server || cluster.CertificateAuthority != "ca.crt" || is.AuthInfo != "me" {
			t.Errorf("use %s: context %s, %+v, %+v", step.use, config.CurrentContext, is, cluster)
		}
	}
	if len(config.Contexts) != 3 {
		t.Errorf("%d contexts", len(config.Contexts))
	}
	config.CurrentContext = "missing"
	if err := switchWorkspace(config, "team-a"); err == nil || !strings.Contains(err.Error(), "--context") {
		t.Error(err)
	}
}
