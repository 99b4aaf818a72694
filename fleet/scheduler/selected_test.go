package scheduler

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

func TestIneffectiveKinds(t *testing.T) {
	known := interpret.Kinds()
	for name, tt := range map[string]struct {
		kinds      []string
		namespaced bool
		want       string
		all        bool
	}{
		"all kinds":                 {nil, true, "", false},
		"a workload":                {[]string{"Deployment"}, true, "", false},
		"with its group":            {[]string{"Deployment.apps"}, true, "", false},
		"another group":             {[]string{"Deployment.example.com"}, true, "objects of kind Deployment.example.com are not placed", true},
		"misspelt":                  {[]string{"Deploymnt"}, true, "(did you mean Deployment?)", true},
		"nodes":                     {[]string{"Node"}, false, "objects of kind Node are not placed", true},
		"one of two":                {[]string{"Node", "Service"}, true, "objects of kind Node are not placed", false},
		"cluster-scoped":            {[]string{"ClusterRole"}, true, "ClusterRole is cluster-scoped: use a ClusterPlacement", true},
		"cluster-scoped, rightly":   {[]string{"ClusterRole"}, false, "", false},
		"configuration, that moves": {[]string{"ConfigMap", "Secret"}, true, "", false},
	} {
		got, all := ineffectiveKinds(tt.kinds, known, tt.namespaced)
		if all != tt.all || !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, %v", name, got, all)
		}
	}
}

// TestPolicyWithoutEffect: a policy is accepted as soon as the type exists that it selects.
func TestPolicyWithoutEffect(t *testing.T) {
	c := begin(t, clusters+app+`
---
apiVersion: fleet.atoll.dev/v1alpha1
kind: Placement
metadata: {name: web, namespace: shop, uid: p}
spec: {selector: {kinds: [Widget]}, clusters: {names: [west]}}
`)
	accepted := func() *metav1.Condition {
		p := &v1alpha1.Placement{}
		c.Read(v1alpha1.PlacementResource, "shop", "web", p)
		return meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
	}
	fakeapi.Until(t, "it is not accepted", func() bool {
		a := accepted()
		return a != nil && a.Status == metav1.ConditionFalse && a.Reason == v1alpha1.ReasonPolicyIneffective
	})
	create(t, c, strings.TrimPrefix(custom, "\n---\n"))
	fakeapi.Until(t, "it is accepted", func() bool { return accepted().Status == metav1.ConditionTrue })
}
