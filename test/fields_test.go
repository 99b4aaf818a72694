package test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// older stands before a member and makes it one of an older release, as far as its
// OpenAPI documents tell: Deployments have no field spec.minReadySeconds. It gives a
// kubeconfig.
func older(t *testing.T, kubeconfig string) string {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	const document = "/openapi/v3/apis/apps/v1"
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if strings.HasPrefix(r.In.URL.Path, "/openapi/v3") {
				r.Out.URL.RawQuery = ""
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		ModifyResponse: func(r *http.Response) error {
			switch r.Request.URL.Path {
			case "/openapi/v3":
				return rewrite(r, func(data []byte) ([]byte, error) {
					return regexp.MustCompile(document+`\?hash=`).ReplaceAll(data, []byte(document+`?hash=0`)), nil
				})
			case document:
				return rewrite(r, withoutMinReadySeconds)
			}
			return nil
		}}
	server := httptest.NewTLSServer(proxy)
	t.Cleanup(server.Close)
	out := clientcmdapi.NewConfig()
	out.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL,
		CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}
	out.AuthInfos["u"] = &clientcmdapi.AuthInfo{}
	out.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	out.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func rewrite(r *http.Response, change func([]byte) ([]byte, error)) error {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if data, err = change(data); err != nil {
		return err
	}
	r.Body.Close()
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}

func withoutMinReadySeconds(data []byte) ([]byte, error) {
	doc := map[string]any{}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	unstructured.RemoveNestedField(doc, "components", "schemas", "io.k8s.api.apps.v1.DeploymentSpec", "properties", "minReadySeconds")
	return json.Marshal(doc)
}

func deploymentWith(name string, replicas int, fields string) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s, namespace: default}, spec: {replicas: %[2]d, %[3]s
selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: c, image: nginx}]}}}}`, name, replicas, fields)
}

// A cluster that does not know a field of a Deployment is not chosen for it, and the
// reason names both. What runs there when the field comes stays.
func TestAClusterDoesNotKnowAField(t *testing.T) {
	f := whole(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c4, err := f.StartMember(ctx, "c4")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c4.Stop() })
	f.atoll(t, "join", "c4", "--kubeconfig", older(t, c4.Kubeconfig))
	t.Cleanup(func() { _, _ = f.run(context.Background(), "atoll", f.Kubeconfig(), "", "leave", "c4", "--force") })
	clusters := f.dynamic(t).Resource(v1alpha1.ClusterResource)
	eventually(t, settle, "c4 is read", func(ctx context.Context) error {
		u, err := clusters.Get(ctx, "c4", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if digest, _, _ := unstructured.NestedString(u.Object, "status", "types", "digest"); digest == "" {
			return fmt.Errorf("status.types is %v", u.Object["status"])
		}
		return nil
	})
	for _, name := range []string{"news", "olds"} {
		t.Cleanup(func() {
			_, _ = f.tryKubectl(context.Background(), "atoll", "", "delete", "deployment", name, "--ignore-not-found")
			f.wantGoneCleanup(t, name)
		})
	}

	f.apply(t, deploymentWith("news", 4, "minReadySeconds: 1,"))
	f.wantShares(t, settle, "news", map[string]int32{"east": 2, "west": 1, "north": 1})
	explained := f.atoll(t, "explain", "deployment/news")
	if !regexp.MustCompile(`c4 +no +- +UnknownFields +the cluster \(v[0-9.]+[^)]*\) does not know \.spec\.minReadySeconds of Deployment`).MatchString(explained) {
		t.Errorf("explained as\n%s", explained)
	}
	file := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(file, []byte(deploymentWith("more", 8, "minReadySeconds: 1,")), 0o600); err != nil {
		t.Fatal(err)
	}
	if preview := f.atoll(t, "preview", "-f", file); strings.Contains(preview, "c4") || !strings.Contains(preview, "north") {
		t.Errorf("previewed as\n%s", preview)
	}

	f.apply(t, deploymentWith("olds", 4, ""))
	f.wantShares(t, settle, "olds", map[string]int32{"east": 1, "west": 1, "north": 1, "c4": 1})
	f.apply(t, deploymentWith("olds", 8, "minReadySeconds: 1,"))
	bindings := f.dynamic(t).Resource(v1alpha1.ResourceBindingResource).Namespace("default")
	eventually(t, settle, "it stays in c4 as it was", func(ctx context.Context) error {
		u, err := bindings.Get(ctx, "deployment.apps-olds", metav1.GetOptions{})
		if err != nil {
			return err
		}
		shares, _, _ := unstructured.NestedSlice(u.Object, "spec", "clusters")
		for _, s := range shares {
			if share, _ := s.(map[string]any); share["name"] == "c4" {
				if share["reason"] == "KeptDespiteObstacle" && share["replicas"] == int64(1) && strings.Contains(fmt.Sprint(share["message"]), ".spec.minReadySeconds") {
					return nil
				}
			}
		}
		return fmt.Errorf("the shares are %v", shares)
	})
	if out := f.kubectl(t, "c4", "get", "deployment", "olds", "-o", "name"); out == "" {
		t.Error("it is gone from c4")
	}
}
