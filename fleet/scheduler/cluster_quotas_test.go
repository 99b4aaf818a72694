package scheduler

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestQuotaOfCluster: a cluster whose ResourceQuota has no room for an object does not get it, new objects
// there count, and a waiting one is placed when there is room.
func TestQuotaOfCluster(t *testing.T) {
	c := newControl(t, clusters)
	free := func(cluster, cpu string) {
		c.Merge(v1alpha1.ClusterResource, "", cluster, fmt.Sprintf(`{"status":{"namespaceQuotas":[{"namespace":"shop","name":"team","hard":{"requests.cpu":"8"},"free":{"requests.cpu":"%s"}}]}}`, cpu))
	}
	free("east", "0")
	free("west", "4")
	c.start(t, Config{})
	in := func(name, want string) {
		t.Helper()
		fakeapi.Until(t, name+" is in "+want, func() bool { return sharesOf(t, c, "shop", "deployment.apps-"+name) == want })
	}
	create(t, c, requesting("first", 3, "1"))
	in("first", "west 3")
	create(t, c, requesting("second", 3, "1"))
	in("second", "west 1")
	fakeapi.Until(t, "the binding names the quota", func() bool {
		s := scheduledOf(t, c, "second")
		return s != nil && s.Status == metav1.ConditionFalse && strings.Contains(s.Message, "east: its ResourceQuota team has no room for another pod")
	})
	agreesWithPreview(t, c)
	free("east", "2")
	in("second", "east 2, west 1")
}
