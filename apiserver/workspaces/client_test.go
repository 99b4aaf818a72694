package workspaces

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/kv"
)

// TestClientConfigAs: a part of Atoll that is a client of a workspace has all rights in it and none elsewhere, its limits, and as another user only that
// user's rights.
func TestClientConfigAs(t *testing.T) {
	s := newStage(t, "a", "b")
	s.want(200, s.as(admin, "GET", "/clusters/a/api/v1/namespaces/default", ""))
	config, err := s.server.ClientConfigAs(s.awake["a"], "a", "atoll:part")
	if err != nil {
		t.Fatal(err)
	}
	create := func(user, name string) error {
		t.Helper()
		as := *config
		as.Impersonate.UserName = user
		client, err := kubernetes.NewForConfig(&as)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	if err := create("", "first"); err != nil {
		t.Fatal(err)
	}
	s.want(404, s.as(admin, "GET", "/clusters/b/api/v1/namespaces/default/configmaps/first", ""))
	if err := create("stranger", "second"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "stranger"`) {
		t.Errorf("as a user without rights: %v", err)
	}
	used, err := s.keyspaces["a"].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.keyspaces["a"].SetLimits(kv.Limits{Keys: &used.Keys})
	if err := create("", "second"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `exceeded limit of workspace "a"`) {
		t.Errorf("beyond the limit: %v", err)
	}
}

// TestRestrictedDial: the errors of connections name what must not connect, and the flag.
func TestRestrictedDial(t *testing.T) {
	dial := RestrictedDial(nil, "clusters", "--the-flag")
	for _, address := range []string{"127.0.0.1:1", "localhost:1", "169.254.169.254:80", "0.0.0.0:1"} {
		_, err := dial(t.Context(), "tcp", address)
		if err == nil || !strings.Contains(err.Error(), "clusters of workspaces may not be at ") || !strings.Contains(err.Error(), "--the-flag") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
