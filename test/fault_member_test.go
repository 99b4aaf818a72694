package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// faultIdentity is a ServiceAccount that Atoll uses for a member during a test. RBAC does not limit the
// administrator that Atoll uses otherwise.
const faultIdentity = "atoll-limited"

// faultRoles are its roles; those that are not granted at first are the faults.
const faultRoles = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: atoll-limited, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: atoll-limited-most}
rules:
- apiGroups: ["", apiextensions.k8s.io, apiregistration.k8s.io, rbac.authorization.k8s.io, admissionregistration.k8s.io, authorization.k8s.io, authentication.k8s.io,
    discovery.k8s.io, networking.k8s.io, policy, autoscaling, coordination.k8s.io, storage.k8s.io, scheduling.k8s.io, node.k8s.io, events.k8s.io, faults.example.com]
  resources: ["*"]
  verbs: ["*"]
- {apiGroups: [apps], resources: [deployments, daemonsets], verbs: ["*"]}
- {apiGroups: [apps], resources: [replicasets], verbs: [get, create, patch, delete]}
- {apiGroups: [batch], resources: ["*"], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: atoll-limited-write-jobs}
rules:
- {apiGroups: [batch], resources: ["*"], verbs: [create, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: atoll-limited-statefulsets}
rules:
- {apiGroups: [apps], resources: [statefulsets], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: atoll-limited-watch-replicasets}
rules:
- {apiGroups: [apps], resources: [replicasets], verbs: [list, watch]}
`

func faultBinding(role string) string {
	return fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[1]s-%[2]s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s-%[2]s},
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: kube-system}]}`, faultIdentity, role)
}

// limit has Atoll reach a member as faultIdentity until the test ends.
func (f *fixture) limit(t *testing.T, member string) {
	t.Helper()
	t.Cleanup(func() {
		for _, role := range []string{"most", "write-jobs", "statefulsets", "watch-replicasets"} {
			_, _ = f.tryKubectl(context.Background(), member, "", "delete", "clusterrolebinding", faultIdentity+"-"+role, "--ignore-not-found")
		}
		_, _ = f.tryKubectl(context.Background(), member, faultRoles, "delete", "--ignore-not-found", "-f", "-")
	})
	f.put(t, member, faultRoles)
	f.put(t, member, faultBinding("most")+"\n---\n"+faultBinding("write-jobs"))
	token, err := f.client(t, member).CoreV1().ServiceAccounts(metav1.NamespaceSystem).
		CreateToken(t.Context(), faultIdentity, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.reachBy(t, member, func(c *clientcmdapi.Config) {
		for _, user := range c.AuthInfos {
			user.ClientCertificateData, user.ClientKeyData, user.Token = nil, nil, token.Status.Token
		}
	})
	t.Cleanup(func() { f.reachBy(t, member, func(*clientcmdapi.Config) {}) })
}

// reachBy has Atoll reach a member by its kubeconfig as change makes it.
func (f *fixture) reachBy(t *testing.T, member string, change func(*clientcmdapi.Config)) {
	t.Helper()
	config, err := clientcmd.LoadFromFile(f.kubeconfig(member))
	if err != nil {
		t.Fatal(err)
	}
	change(config)
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{v1alpha1.KubeconfigSecretKey: data}})
	if err != nil {
		t.Fatal(err)
	}
	// Not the test's context: this is how it leaves things behind, too.
	if _, err := f.client(t, "atoll").CoreV1().Secrets(v1alpha1.SystemNamespace).
		Patch(context.Background(), "cluster-"+member, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// kubeconfigFault is a kubeconfig that does not lead to its cluster, east.
type kubeconfigFault struct {
	name   string
	change func(*clientcmdapi.Config)
	reason string
	says   []string
}

// kubeconfigFaults is the matrix of them. What can be wrong with certificates of
// servers is in fleet/clusters, since no real member has one that expired.
func (f *fixture) kubeconfigFaults(t *testing.T) []kubeconfigFault {
	north, err := clientcmd.LoadFromFile(f.kubeconfig("north"))
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := f.expired(t, "east")
	return []kubeconfigFault{
		{"bad host", forClusters(func(c *clientcmdapi.Cluster) { c.Server = "https://127.0.0.1:1" }),
			v1alpha1.ReasonClusterUnreachable, []string{"nothing listens at 127.0.0.1:1", "atoll join"}},
		{"bad authority", forClusters(func(c *clientcmdapi.Cluster) {
			for _, other := range north.Clusters {
				c.CertificateAuthorityData = other.CertificateAuthorityData
			}
		}), v1alpha1.ReasonInvalidKubeConfig, []string{"not signed by the authority in the kubeconfig", "atoll join"}},
		{"bad token", forUsers(func(u *clientcmdapi.AuthInfo) { *u = clientcmdapi.AuthInfo{Token: "swordfish"} }),
			v1alpha1.ReasonInvalidKubeConfig, []string{"does not accept the credentials", "atoll join"}},
		{"expired certificate", forUsers(func(u *clientcmdapi.AuthInfo) { u.ClientCertificateData, u.ClientKeyData = certificate, key }),
			v1alpha1.ReasonInvalidKubeConfig, []string{"expired at", "atoll join"}},
		{"another cluster's", func(c *clientcmdapi.Config) { *c = *north },
			v1alpha1.ReasonWrongCluster, []string{"has already joined as north", "atoll join east"}},
		{"none at all", func(c *clientcmdapi.Config) { *c = *clientcmdapi.NewConfig() },
			v1alpha1.ReasonInvalidKubeConfig, []string{"Secret atoll-system/cluster-east", "atoll join"}},
	}
}

func forClusters(change func(*clientcmdapi.Cluster)) func(*clientcmdapi.Config) {
	return func(c *clientcmdapi.Config) {
		for _, cluster := range c.Clusters {
			change(cluster)
		}
	}
}

func forUsers(change func(*clientcmdapi.AuthInfo)) func(*clientcmdapi.Config) {
	return func(c *clientcmdapi.Config) {
		for _, user := range c.AuthInfos {
			change(user)
		}
	}
}

// expired is a client certificate of a member's own authority that was good until an
// hour ago, and its key.
func (f *fixture) expired(t *testing.T, member string) (certificate, private []byte) {
	t.Helper()
	pki := filepath.Join(f.dir, "members", member, "pki")
	authority, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := x509.ParseCertificate(authority.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)},
		issuer, key.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if private, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), private
}

// hookServer is an admission webhook that refuses, or says nothing.
type hookServer struct{ *httptest.Server }

func newHookServer(t *testing.T) *hookServer {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "not today"}}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the caller has gone
		<-r.Context().Done()
	})
	s := &hookServer{httptest.NewTLSServer(mux)}
	t.Cleanup(s.Close)
	return s
}

// configuration has a member ask the server about Deployments of a namespace.
func (s *hookServer) configuration(namespace, path string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	bundle, _ := json.Marshal(ca) // bytes become base64
	return fmt.Sprintf(`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: %[1]s}, webhooks: [{name: %[1]s.example.org,
clientConfig: {url: "%[2]s%[3]s", caBundle: %[4]s}, timeoutSeconds: 1, failurePolicy: Fail, sideEffects: None, admissionReviewVersions: [v1],
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}},
rules: [{apiGroups: [apps], apiVersions: [v1], resources: [deployments], operations: [CREATE, UPDATE], scope: Namespaced}]}]}`, namespace, s.URL, path, bundle)
}

// wantFault waits until a Cluster is not Ready for this reason, with these words.
func (f *fixture) wantFault(t *testing.T, cluster, reason string, words []string) {
	t.Helper()
	for _, w := range words {
		f.wantCondition(t, clustersResource, cluster, "Ready", "False", reason, w)
	}
}

// kept are the UIDs of everything of the fleet in the members, by where it is.
func (f *fixture) kept(t *testing.T) map[string]types.UID {
	t.Helper()
	out := map[string]types.UID{}
	for _, m := range members {
		list, err := f.client(t, m).AppsV1().Deployments("default").List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.ManagedLabel + "=true"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			out[m+"/"+list.Items[i].Name] = list.Items[i].UID
		}
	}
	return out
}
