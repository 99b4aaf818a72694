package test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/playground/child"
)

// An operator that was written for one cluster runs against Atoll. Its type exists only in Atoll, and the
// objects that it creates run in the members.
func TestAnOperatorDoesNotNotice(t *testing.T) {
	f := whole(t)
	o := installSiteOperator(t, f)
	o.start(t)
	f.kubectl(t, "atoll", "apply", "-f", filepath.Join(o.source, "config", "lagoon.yaml"))
	wait := func(condition string) {
		t.Helper()
		f.kubectl(t, "atoll", "wait", "--for="+condition, "site/lagoon", "--timeout=2m")
	}
	wait("condition=Ready")
	wait("jsonpath={.status.readyReplicas}=6")
	f.wantShares(t, settle, "lagoon", map[string]int32{"east": 2, "west": 2, "north": 2})
	f.wantOnce(t, "statefulset", "lagoon-cache")
	f.wantOnce(t, "pod", "lagoon-probe")
	for _, m := range members {
		eventually(t, settle, m+" has what the Deployment uses", func(ctx context.Context) error {
			page, err := f.tryKubectl(ctx, m, "", "get", "configmap", "lagoon-pages", "-o", "jsonpath={.data.index\\.html}")
			if err == nil && page != "<h1>A lagoon</h1>" {
				err = fmt.Errorf("the page is %q", page)
			}
			if err == nil {
				_, err = f.tryKubectl(ctx, m, "", "get", "service", "lagoon")
			}
			return err
		})
		if out, err := f.tryKubectl(t.Context(), m, "", "get", "crd", "sites.web.example.com", "--ignore-not-found", "-o", "name"); err != nil || out != "" {
			t.Errorf("%s has the operator's type: %q, %v", m, out, err)
		}
	}

	f.kubectl(t, "atoll", "patch", "site", "lagoon", "--type=merge", "-p", `{"spec":{"replicas":9,"image":"nginx:1.30","pages":{"index.html":"tide"}}}`)
	wait("jsonpath={.status.readyReplicas}=9")
	wait("condition=Ready")
	f.wantShares(t, settle, "lagoon", map[string]int32{"east": 3, "west": 3, "north": 3})
	for _, m := range members {
		if image := f.kubectl(t, m, "get", "deployment", "lagoon", "-o", "jsonpath={.spec.template.spec.containers[0].image}"); image != "nginx:1.30" {
			t.Errorf("%s has image %s after the Site was Ready again", m, image)
		}
	}

	t.Run("a deleted object is recreated", func(t *testing.T) {
		uid := f.kubectl(t, "atoll", "get", "deployment", "lagoon", "-o", "jsonpath={.metadata.uid}")
		f.kubectl(t, "atoll", "delete", "deployment", "lagoon")
		eventually(t, settle, "there is another Deployment", func(ctx context.Context) error {
			now, err := f.tryKubectl(ctx, "atoll", "", "get", "deployment", "lagoon", "-o", "jsonpath={.metadata.uid}")
			if err == nil && now == uid {
				err = fmt.Errorf("it is the one that was deleted")
			}
			return err
		})
		f.wantShares(t, settle, "lagoon", map[string]int32{"east": 3, "west": 3, "north": 3})
	})

	// The finalizer waits for a Job, which runs in a member and completes.
	f.kubectl(t, "atoll", "delete", "site", "lagoon", "--timeout=2m")
	for _, object := range []string{"deployment/lagoon", "statefulset/lagoon-cache", "pod/lagoon-probe", "job/lagoon-archive", "configmap/lagoon-pages", "service/lagoon"} {
		kind, name, _ := strings.Cut(object, "/")
		f.wantGone(t, kind, name, append([]string{"atoll"}, members...)...)
	}
}

// wantOnce waits until exactly one member has an object.
func (f *fixture) wantOnce(t *testing.T, kind, name string) {
	t.Helper()
	eventually(t, settle, kind+" "+name+" is in one member", func(ctx context.Context) error {
		var in []string
		for _, m := range members {
			out, err := f.tryKubectl(ctx, m, "", "get", kind, name, "--ignore-not-found", "-o", "name")
			if err != nil {
				return err
			}
			if out != "" {
				in = append(in, m)
			}
		}
		if len(in) != 1 {
			return fmt.Errorf("it is in %v", in)
		}
		return nil
	})
}

// siteOperator is examples/site, built and installed.
type siteOperator struct {
	*fixture
	source, binary, kubeconfigFile string
}

func installSiteOperator(t *testing.T, f *fixture) *siteOperator {
	t.Helper()
	source := filepath.Join("..", "examples", "site")
	o := &siteOperator{fixture: f, source: source, binary: filepath.Join(f.dir, "site"), kubeconfigFile: filepath.Join(f.dir, "site-operator.kubeconfig")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", source, "-o", o.binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build examples/site: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		_, _ = f.tryKubectl(ctx, "atoll", "", "patch", "site", "lagoon", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		for _, args := range [][]string{{"site", "lagoon", "--ignore-not-found"}, {"-f", filepath.Join(source, "config", "operator.yaml"), "--ignore-not-found", "--wait=false"}} {
			_, _ = f.tryKubectl(ctx, "atoll", "", append([]string{"delete"}, args...)...)
		}
	})
	f.kubectl(t, "atoll", "apply", "-f", filepath.Join(source, "config", "operator.yaml"))
	f.kubectl(t, "atoll", "wait", "crd/sites.web.example.com", "--for=condition=Established", "--timeout=1m")
	o.writeKubeconfig(t)
	return o
}

// writeKubeconfig writes a kubeconfig with the operator's service account in Atoll. The operator gets no other
// configuration.
func (o *siteOperator) writeKubeconfig(t *testing.T) {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
	token, err := o.client(t, "atoll").CoreV1().ServiceAccounts("site-operator").CreateToken(t.Context(), "site-operator", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(o.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range config.Contexts {
		config.AuthInfos[user.AuthInfo] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	if err := clientcmd.WriteToFile(*config, o.kubeconfigFile); err != nil {
		t.Fatal(err)
	}
}

// start runs it beside the members, for the time of the test.
func (o *siteOperator) start(t *testing.T) {
	t.Helper()
	process, err := child.Start(child.Spec{
		Role: programRole, Name: "the operator of sites", LogFile: filepath.Join(o.dir, "logs", "site-operator.log"),
		Config: []string{o.binary, "--kubeconfig", o.kubeconfigFile},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Stop() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var pid int
	if err := process.WaitReady(ctx, &pid); err != nil {
		t.Fatal(err)
	}
}
