package server_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/server"
)

// issuer is an OpenID Connect issuer.
type issuer struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		encode := base64.RawURLEncoding.EncodeToString
		answer := map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"}}
		if r.URL.Path == "/keys" {
			answer = map[string]any{"keys": []any{map[string]any{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "k", "n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes())}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(i.Close)
	return i
}

// token returns a JSON Web Token.
func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	var parts []string
	for _, part := range []map[string]any{{"alg": "RS256", "typ": "JWT", "kid": "k"}, claims} {
		encoded, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(encoded))
	}
	signed := strings.Join(parts, ".")
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// TestIssuersAndAuthorizers: users come from an OpenID Connect issuer, their groups have rights by RBAC, and authorizers are
// those of a file.
func TestIssuersAndAuthorizers(t *testing.T) {
	i, dir := newIssuer(t), t.TempDir()
	write := func(name string, content any) string {
		t.Helper()
		encoded, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, encoded, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
	type fields = map[string]any
	authentication := write("authentication.yaml", fields{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": []any{fields{
		"issuer":        fields{"url": i.URL, "audiences": []string{"atoll"}, "certificateAuthority": authority},
		"claimMappings": fields{"username": fields{"claim": "sub", "prefix": "oidc:"}, "groups": fields{"claim": "groups", "prefix": "oidc:"}},
	}}})
	// The second authorizer permits all to one user, as a webhook of a company could.
	authorization := write("authorization.yaml", fields{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": []any{
		fields{"type": "RBAC", "name": "rbac"}, fields{"type": "AlwaysAllow", "name": "alwaysallow"},
	}})
	for _, tt := range []struct {
		name, authorization string
		outside             bool // whether the user may read other namespaces
	}{{"RBAC alone", "", false}, {"with another authorizer", authorization, true}} {
		t.Run(tt.name, func(t *testing.T) {
			a := newServer(t, server.Config{DataDir: filepath.Join(t.TempDir(), "data"), AuthenticationConfigFile: authentication, AuthorizationConfigFile: tt.authorization, MaxTokenAge: 2 * time.Hour})
			t.Cleanup(func() {
				if err := a.stop(); err != nil {
					t.Error(err)
				}
			})
			admin, namespace := a.client(t), a.namespace(t)
			if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "team"},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "oidc:team"}}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			as := func(claims map[string]any) *kubernetes.Clientset {
				config := rest.AnonymousClientConfig(a.config(t))
				config.BearerToken = i.token(t, claims)
				client, err := kubernetes.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				return client
			}
			claims := func(more map[string]any) map[string]any {
				out := map[string]any{"iss": i.URL, "aud": "atoll", "sub": "ann", "groups": []string{"team", "system:masters"}, "iat": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(time.Hour).Unix()}
				for key, value := range more {
					out[key] = value
				}
				return out
			}
			ann := as(claims(nil))
			who, err := ann.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			if err != nil || who.Status.UserInfo.Username != "oidc:ann" || slices.Contains(who.Status.UserInfo.Groups, "system:masters") {
				t.Fatalf("%+v (%v)", who, err)
			}
			eventually(t, "a user of the team writes in its namespace", func(ctx context.Context) error {
				_, err := ann.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
				return err
			})
			if _, err := ann.CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{}); (err == nil) != tt.outside || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("in another namespace: %v", err)
			}
			for name, wrong := range map[string]map[string]any{"expired": {"exp": time.Now().Add(-time.Minute).Unix()}, "of another audience": {"aud": "other"}, "of another issuer": {"iss": "https://other.example"}} {
				if _, err := as(claims(wrong)).CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
					t.Errorf("a token %s: %v", name, err)
				}
			}
			seconds := int64((24 * time.Hour).Seconds())
			token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if left := time.Until(token.Status.ExpirationTimestamp.Time); left > 2*time.Hour+time.Minute {
				t.Errorf("a token for a day ends in %s", left)
			}
		})
	}
}

// TestInvalidAccessFiles: the error of the start names the file, and the field.
func TestInvalidAccessFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(path, []byte(`{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [{"issuer": {"url": "http://plain.example", "audiences": ["a"]}, "claimMappings": {"username": {"claim": "sub", "prefix": ""}}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := start(server.Config{DataDir: filepath.Join(t.TempDir(), "data"), AuthenticationConfigFile: path})
	if err == nil || !strings.Contains(err.Error(), "jwt[0].issuer.url") {
		t.Errorf("%v", err)
	}
	_, err = start(server.Config{DataDir: filepath.Join(t.TempDir(), "data"), AuthorizationConfigFile: path + ".missing"})
	if err == nil || !strings.Contains(err.Error(), path+".missing") {
		t.Errorf("%v", err)
	}
}

// TestFleetRoles: Kubernetes' roles cover the fleet's kinds of a namespace, and two more those without one.
func TestFleetRoles(t *testing.T) {
	a := theServer(t)
	client, namespace := a.client(t), a.namespace(t)
	for user, role := range map[string]string{"viewer": "view", "editor": "edit", "administrator": "admin"} {
		if _, err := client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: namespace + user}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []string{"viewer", "operator"} {
		name := namespace + "-fleet-" + role
		if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "atoll:fleet-" + role}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: namespace + "fleet-" + role}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = client.RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	for _, tt := range []struct {
		user, verb, resource string
		clusterScoped        bool
		want                 bool
	}{
		{"viewer", "get", "placements", false, true},
		{"viewer", "list", "resourcebindings", false, true},
		{"viewer", "list", "fleetquotas", false, true},
		{"viewer", "create", "placements", false, false},
		{"viewer", "get", "clusters", true, false},
		{"editor", "create", "placements", false, true},
		{"editor", "delete", "scaleschedules", false, true},
		{"editor", "get", "resourcebindings", false, true},
		{"editor", "update", "resourcebindings", false, false},
		{"editor", "create", "fleetquotas", false, false},
		{"editor", "create", "clusterplacements", true, false},
		{"administrator", "patch", "placements", false, true},
		{"administrator", "create", "fleetquotas", false, false},
		{"fleet-viewer", "list", "clusters", true, true},
		{"fleet-viewer", "list", "sharedapis", true, true},
		{"fleet-viewer", "get", "clusters/status", true, true},
		{"fleet-viewer", "get", "clusters/proxy", true, false},
		{"fleet-viewer", "patch", "clusters", true, false},
		{"fleet-operator", "create", "clusterplacements", true, true},
		{"fleet-operator", "create", "fleetquotas", false, true},
		{"fleet-operator", "patch", "clusters", true, true},
		{"fleet-operator", "create", "clusters", true, false},
		{"fleet-operator", "get", "clusters/proxy", true, false},
		{"fleet-operator", "create", "sharedapis", true, false},
	} {
		resource, subresource, _ := strings.Cut(tt.resource, "/")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: namespace + tt.user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: tt.verb, Group: v1alpha1.Group, Resource: resource, Subresource: subresource}}}
		if tt.clusterScoped {
			review.Spec.ResourceAttributes.Namespace = ""
		}
		eventually(t, fmt.Sprintf("%s %s %s is %v", tt.user, tt.verb, tt.resource, tt.want), func(ctx context.Context) error {
			got, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err == nil && got.Status.Allowed != tt.want {
				err = fmt.Errorf("allowed: %v (%s)", got.Status.Allowed, got.Status.Reason)
			}
			return err
		})
	}
	list, err := client.Discovery().ServerResourcesForGroupVersion(v1alpha1.Group + "/" + v1alpha1.Version)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range list.APIResources {
		if strings.Contains(kind.Name, "/") {
			continue
		}
		got, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: namespace + "fleet-viewer",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Group: v1alpha1.Group, Resource: kind.Name}}}, metav1.CreateOptions{})
		if err != nil || !got.Status.Allowed {
			t.Errorf("atoll:fleet-viewer may not list %s (%v): add it to fleetResources", kind.Name, err)
		}
	}
}
