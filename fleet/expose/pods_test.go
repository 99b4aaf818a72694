package expose

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// apiServerPod returns the Pod of an API server with environment variables, as NAME=VALUE.
func apiServerPod(variables ...string) *unstructured.Unstructured {
	var env []any
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		env = append(env, map[string]any{"name": name, "value": value})
	}
	u := plain("v1", "Pod", "kube-system", "kube-apiserver-one", map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{"name": "kube-apiserver", "image": "none", "env": env}}}})
	u.SetLabels(map[string]string{"component": "kube-apiserver"})
	return u
}

func TestTimeToNotice(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want time.Duration
	}{
		{nil, 45 * time.Second},
		{[]string{readIdleVariable + "=5", pingVariable + "=5"}, 10 * time.Second},
		{[]string{readIdleVariable + "=5"}, 20 * time.Second},
		{[]string{readIdleVariable + "=0"}, -1},
		{[]string{readIdleVariable + "=x", pingVariable + "=5"}, -1},
	} {
		if got := timeToNotice(apiServerPod(c.env...)); got != c.want {
			t.Errorf("%q: %s, want %s", c.env, got, c.want)
		}
	}
}

// TestSlowToNotice: the SharedAPI says that a member notices a frozen server late, and stops when it does not.
func TestSlowToNotice(t *testing.T) {
	s := open(t, []*unstructured.Unstructured{crd("carts", "shop.example.org", "True", "v1"), lease("a", "10.0.0.1:6444"), shared("shop", []string{"east"}, "shop.example.org")},
		map[string][]*unstructured.Unstructured{"east": {authority(t), apiServerPod()}})
	message := func() string {
		var out v1alpha1.SharedAPI
		if !s.control.Read(v1alpha1.SharedAPIResource, "", "shop", &out) {
			return ""
		}
		e, _ := out.Exposure("east")
		if !e.Exposed {
			return "not exposed"
		}
		return e.Message
	}
	s.eventually("a message about timeouts", func() bool {
		return strings.Contains(message(), "Pod kube-system/kube-apiserver-one") && strings.Contains(message(), "after 45 s") && strings.Contains(message(), readIdleVariable+"=5")
	})
	s.members["east"].Put(apiServerPod(readIdleVariable+"=5", pingVariable+"=5"))
	s.eventually("no message", func() bool { return message() == "" })
}
