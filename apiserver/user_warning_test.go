package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/apiserver"
	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestUserWarning: a user who writes an object gets the warning about it, as the client wrote it; also in a
// dry run. Controllers get none.
func TestUserWarning(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	files := makeFiles(t)
	files.Warning = &apiserver.Warning{
		Concerns: func(kind schema.GroupKind, namespace string) bool {
			return kind.Kind == "ConfigMap" && namespace == metav1.NamespaceDefault
		},
		About: func(obj *unstructured.Unstructured) string {
			data, _, _ := unstructured.NestedString(obj.Object, "data", "warn")
			return strings.TrimSpace(obj.GetAPIVersion() + " " + obj.GetKind() + " " + data)
		},
		AboutLabels: func(labels map[string]string) string { return labels["warn"] },
	}
	server := startServer(t, keyspace, files, "sole")
	defer func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	}()
	write := func(user, name string, options metav1.CreateOptions) string {
		t.Helper()
		var heard warnings
		config := rest.CopyConfig(server.config)
		config.WarningHandler = &heard
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"warn": "its-label"}}, Data: map[string]string{"warn": "of it"}}, options)
		if err != nil {
			t.Fatal(err)
		}
		return heard.take()
	}
	for _, tt := range []struct {
		user, name string
		options    metav1.CreateOptions
		want       string
	}{
		{"jane", "a", metav1.CreateOptions{}, "its-label\nv1 ConfigMap of it"},
		{"jane", "b", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, "its-label\nv1 ConfigMap of it"},
		{"system:serviceaccount:kube-system:x", "c", metav1.CreateOptions{}, ""},
		{"atoll:fleet", "d", metav1.CreateOptions{}, ""},
	} {
		if got := write(tt.user, tt.name, tt.options); got != tt.want {
			t.Errorf("%s was warned %q, want %q", tt.user, got, tt.want)
		}
	}
}
