package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// account applies the printed roles in the member, and returns a kubeconfig of the syncer's account there.
func (i *island) account() string {
	i.t.Helper()
	i.allow()
	token := i.kubectl(i.t, "island", "create", "token", "atoll-syncer", "-n", "atoll-system", "--duration=1h")
	config, err := clientcmd.LoadFromFile(i.kubeconfig("island"))
	if err != nil {
		i.t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		*user = clientcmdapi.AuthInfo{Token: token}
	}
	path := filepath.Join(i.dir, "syncer.kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		i.t.Fatal(err)
	}
	return path
}

// allow applies the printed roles in the member.
func (i *island) allow(flags ...string) {
	i.t.Helper()
	manifest := i.atoll(i.t, append([]string{"join", "island", "--mode", "pull", "--roles-only"}, flags...)...)
	if _, err := i.tryKubectl(i.t.Context(), "island", manifest, "apply", "-f", "-"); err != nil {
		i.t.Fatal(err)
	}
}

// allowWhenForbidden waits until a binding says that the syncer lacks a permission, and how to add it, and adds it.
func (i *island) allowWhenForbidden(flag string, binding ...string) {
	i.t.Helper()
	state := append([]string{"get", "-o", "jsonpath={.status.clusters[0].reason} {.status.clusters[0].message}"}, binding...)
	eventually(i.t, settle, strings.Join(binding, " ")+" is forbidden", func(ctx context.Context) error {
		out, err := i.tryKubectl(ctx, "atoll", "", state...)
		if err == nil && (!strings.HasPrefix(out, "Forbidden ") || !strings.Contains(out, "--roles-only "+flag+"`")) {
			err = fmt.Errorf("its state is %q, without %s", out, flag)
		}
		return err
	})
	i.allow(strings.Fields(flag)...)
}

// joinByToken has the cluster join with a bootstrap token, by the printed manifests. No program runs in its Pods, so the
// syncer runs here, under the account and with the Secret that the manifests give it.
func (i *island) joinByToken(t *testing.T, ready []string) {
	i.kill()
	manifests := i.atoll(t, "join", "island", "--mode", "pull", "--bootstrap", "--server", "https://"+i.link.Address())
	if _, err := i.tryKubectl(t.Context(), "island", manifests, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	i.stored = []string{"--view-secret", "atoll-system/atoll-syncer"}
	i.says("atoll", "", "get", "clusters", "-o", "name")
	i.start()
	approve := ""
	eventually(t, settle, "the syncer waits for its approval", func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(i.dir, "logs", "syncer.log"))
		if err != nil {
			return err
		}
		_, after, waits := strings.Cut(string(log), "waiting for approval: kubectl ")
		if !waits {
			return errors.New("it does not say so")
		}
		approve, _, _ = strings.Cut(after, "\n")
		return nil
	})
	i.kubectl(t, "atoll", strings.Fields(approve)...)
	i.says("atoll", "ClusterReady", ready...)
	i.apply(t, islandApp)
	i.says("atoll", "2/2", "get", "deployment", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}/{.spec.replicas}")
	secret, err := i.client(t, "island").CoreV1().Secrets("atoll-system").Get(t.Context(), "atoll-syncer", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	view := filepath.Join(i.dir, "stored.kubeconfig")
	if err := os.WriteFile(view, secret.Data["kubeconfig"], 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := i.run(t.Context(), "kubectl", view, "", "get", "deployments", "-n", "shop", "-o", "name"); err != nil || out != "deployment.apps/web" {
		t.Errorf("the view by the stored credential: %q %v", out, err)
	}
	i.kubectl(t, "atoll", "annotate", "cluster", "island", "fleet.atoll.dev/credential-")
	eventually(t, settle, "the credential is revoked", func(ctx context.Context) error {
		if out, err := i.run(ctx, "kubectl", view, "", "get", "secrets", "-A"); err == nil {
			return fmt.Errorf("it reads %q", out)
		} else if !strings.Contains(err.Error(), "Forbidden") {
			return err
		}
		return nil
	})
}
