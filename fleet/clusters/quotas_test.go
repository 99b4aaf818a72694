package clusters

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestQuotasOfNamespaces: the quotas of a member that limit pods are reported with their free amounts, if the
// namespace concerns the fleet.
func TestQuotasOfNamespaces(t *testing.T) {
	n, member := watchNodes(t,
		`{apiVersion: v1, kind: ResourceQuota, metadata: {name: team, namespace: shop, uid: a}, spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}},
			status: {hard: {requests.cpu: "8", pods: "10", services: "5"}, used: {requests.cpu: "3", pods: "12", services: "1"}}}`,
		`{apiVersion: v1, kind: ResourceQuota, metadata: {name: objects, namespace: shop, uid: b}, status: {hard: {services: "5", requests.storage: 1Gi}, used: {services: "1", requests.storage: "0"}}}`,
		`{apiVersion: v1, kind: ResourceQuota, metadata: {name: uncounted, namespace: shop, uid: c}, status: {hard: {pods: "5"}}}`,
		`{apiVersion: v1, kind: ResourceQuota, metadata: {name: team, namespace: other, uid: d}, status: {hard: {pods: "5"}, used: {pods: "0"}}}`,
	)
	reported := func() []v1alpha1.NamespaceQuota {
		var status v1alpha1.ClusterStatus
		n.count(&status, func(namespace string) bool { return namespace == "shop" }, time.Now())
		return status.NamespaceQuotas
	}
	fakeapi.Until(t, "the quota is reported", func() bool { return len(reported()) == 1 })
	q := reported()[0]
	if q.Namespace != "shop" || q.Name != "team" || len(q.Scopes) != 1 || len(q.Hard) != 2 || q.Free.Pods().Sign() != 0 {
		t.Errorf("%+v", q)
	}
	if cpu := q.Free["requests.cpu"]; cpu.String() != "5" {
		t.Errorf("free: %v", q.Free)
	}
	member.Delete(schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "shop", "team")
	fakeapi.Until(t, "no quota is reported", func() bool { return len(reported()) == 0 })
}
