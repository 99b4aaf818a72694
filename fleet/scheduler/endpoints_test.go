package scheduler

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var endpointSlices = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}

// exportedWeb is a Deployment in east, and workloads in west and north that import its Service.
const exportedWeb = `
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, uid: n}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: d, labels: {fleet.atoll.dev/cluster: east}}
spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: shop, uid: f, labels: {fleet.atoll.dev/cluster: west}}
spec: {replicas: 1, selector: {matchLabels: {app: client}}, template: {metadata: {labels: {app: client}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: client-of-north, namespace: shop, uid: o, labels: {fleet.atoll.dev/cluster: north}}
spec: {replicas: 1, selector: {matchLabels: {app: client}}, template: {metadata: {labels: {app: client}}, spec: {containers: [{name: c, image: i}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: s}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: DERIVED, namespace: shop, uid: v, labels: {fleet.atoll.dev/imported: "true", multicluster.kubernetes.io/service-name: web}}
spec: {ports: [{port: 80}]}
`

const northCluster = `{apiVersion: fleet.atoll.dev/v1alpha1, kind: Cluster, metadata: {name: north, uid: o, creationTimestamp: "2026-01-03T00:00:00Z"},
  status: {conditions: [{type: Ready, status: "STATUS", reason: REASON, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}}`

// eastSlice is the EndpointSlice that clusters import from east.
func eastSlice(ready bool) string {
	derived := multicluster.DerivedName("shop", "web")
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: shop, name: %s-east-ipv4-0, uid: l, labels: {fleet.atoll.dev/imported: "true",
  multicluster.kubernetes.io/service-name: web, multicluster.kubernetes.io/source-cluster: east, kubernetes.io/service-name: %[1]s}}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1], conditions: {ready: %[2]t}}]}`, derived, ready)
}

// startExported starts a scheduler with clusters that run the bindings. applied is the generation of the EndpointSlice that
// clusters have. The syncer of east reports which endpoints it takes out.
func startExported(t *testing.T, exported bool) (c *control, applied *atomic.Int64) {
	t.Helper()
	derived := multicluster.DerivedName("shop", "web")
	ready := strings.NewReplacer("STATUS", "True", "REASON", "ClusterReady").Replace(northCluster)
	c = begin(t, clusters+"---\n"+ready+strings.ReplaceAll(exportedWeb, "DERIVED", derived))
	c.Put(parse(t, eastSlice(true))[0])
	applied = &atomic.Int64{}
	applied.Store(1)
	slice := object{endpointSliceKind(), types.NamespacedName{Namespace: "shop", Name: derived + "-east-ipv4-0"}}.binding().Name
	playMembers(t, c, func(b *v1alpha1.ResourceBinding) {
		runAtOnce(b, false)
		for i := range b.Status.Clusters {
			state := &b.Status.Clusters[i]
			if b.Name == slice {
				state.Generation = applied.Load()
			}
			if share, _ := b.Share(state.Name); share.Drain != nil {
				state.Drain = &v1alpha1.EndpointDrainReport{Revision: share.Drain.Revision, Replicas: share.Drain.Replicas, Addresses: []string{"10.0.0.1"}}
			}
		}
	})
	fakeapi.Until(t, "the Service has a binding", func() bool { return bindingIn(t, c, "service-web").UID != "" })
	if exported {
		c.Merge(v1alpha1.ResourceBindingResource, "shop", "service-web", `{"metadata": {"annotations": {"fleet.atoll.dev/exported": "export"}}}`)
	}
	fakeapi.Until(t, "west and north have the EndpointSlice of east", func() bool {
		b := bindingIn(t, c, slice)
		_, west := b.State("west")
		_, north := b.State("north")
		return west && north && describe(webOf(t, c).Spec.Clusters) == "east 2"
	})
	return c, applied
}

func waitsFor(t *testing.T, c *control, text string) {
	t.Helper()
	fakeapi.Eventually(t, "the move waits for "+text, func() error {
		b := webOf(t, c)
		if st := b.Status.Transition; st == nil || st.WaitingFor != text {
			return fmt.Errorf("%+v of %+v", st, b.Spec)
		}
		return nil
	})
}

// TestMoveWaitsForEndpoints: the replicas of a cluster leave when Atoll's EndpointSlice has them no more as ready endpoints,
// and the importing clusters have applied that. One that does not answer is not waited for.
func TestMoveWaitsForEndpoints(t *testing.T) {
	c, applied := startExported(t, true)
	c.Put(parse(t, strings.NewReplacer("STATUS", "Unknown", "REASON", "ClusterUnreachable").Replace(northCluster))[0])
	c.Merge(deployments, "shop", "web", labelled("west"))
	waitsFor(t, c, "cluster east to take the replicas that leave it out of the endpoints of exported Services")
	if share, runs := webOf(t, c).Share("east"); !runs || share.Drain == nil || *share.Replicas-share.Drain.Replicas < 1 {
		t.Errorf("the share is %+v", share)
	}
	c.Put(parse(t, eastSlice(false))[0])
	generation := c.Get(endpointSlices, "shop", multicluster.DerivedName("shop", "web")+"-east-ipv4-0").GetGeneration()
	if generation < 2 {
		t.Fatalf("the generation is %d", generation)
	}
	waitsFor(t, c, "clusters east, west to apply the endpoints of exported Services without the replicas that leave east")
	applied.Store(generation)
	fakeapi.Until(t, "it runs in west", func() bool {
		b := webOf(t, c)
		return describe(b.Spec.Clusters) == "west 2" && b.Spec.Transition == nil
	})
}

// TestMoveDoesNotWaitForever: a cluster that does not apply EndpointSlices delays a move, and does not stop it.
func TestMoveDoesNotWaitForever(t *testing.T) {
	c, _ := startExported(t, true)
	c.Put(parse(t, eastSlice(false))[0])
	c.Merge(deployments, "shop", "web", labelled("west"))
	waitsFor(t, c, "clusters east, north, west to apply the endpoints of exported Services without the replicas that leave east")
	b := webOf(t, c)
	c.changeBinding(t, b, func(b *v1alpha1.ResourceBinding) {
		for i := range b.Spec.Clusters {
			if d := b.Spec.Clusters[i].Drain; d != nil {
				d.Since.Time = d.Since.Add(-time.Hour)
			}
		}
	})
	fakeapi.Until(t, "the share is smaller", func() bool {
		share, runs := webOf(t, c).Share("east")
		return !runs || *share.Replicas < 2
	})
}

// TestLostClusterExportsNothing: when the last workload of a Service has failed over, its cluster does not export the Service
// any more, although it keeps it for pods that may still run there. While another workload of the Service stays, it does.
func TestLostClusterExportsNothing(t *testing.T) {
	stays := `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: stays, namespace: shop, uid: y, labels: {fleet.atoll.dev/cluster: east}}
spec: {replicas: 1, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: i}]}}}
`
	for name, test := range map[string]struct {
		more    string
		exports bool
	}{"the last one": {"", false}, "another one stays": {stays, true}} {
		t.Run(name, func(t *testing.T) {
			c := begin(t, clusters+app+inOne+test.more)
			placedAt(t, c, "east")
			service := func() *v1alpha1.ResourceBinding { return bindingIn(t, c, "service-web") }
			fakeapi.Until(t, "the Service is there", func() bool {
				return multicluster.Exports(service(), "east") && (test.more == "" || describe(bindingIn(t, c, "deployment.apps-stays").Spec.Clusters) != "")
			})
			members(t, c, true)
			reported(t, c)
			if !multicluster.Exports(service(), "east") {
				t.Fatal("it exports nothing before it fails")
			}
			c.Merge(v1alpha1.ClusterResource, "", "east", fails)
			placedAt(t, c, "west")
			fakeapi.Eventually(t, "the Service follows", func() error {
				b := service()
				if is := multicluster.Exports(b, "east"); is != test.exports || !multicluster.Exports(b, "west") {
					return fmt.Errorf("exports %v, requests %v", is, b.Spec.RequestedRemovals)
				}
				return nil
			})
			caughtUp(t, c)
			if b := service(); multicluster.Exports(b, "east") != test.exports {
				t.Errorf("requests %v", b.Spec.RequestedRemovals)
			}
		})
	}
}

// TestMoveWithoutExport: without an exported Service no share announces anything.
func TestMoveWithoutExport(t *testing.T) {
	c, _ := startExported(t, false)
	c.Merge(deployments, "shop", "web", labelled("west"))
	fakeapi.Until(t, "it runs in west", func() bool {
		b := webOf(t, c)
		if share, _ := b.Share("east"); share.Drain != nil {
			t.Fatalf("it announces %+v", share.Drain)
		}
		return describe(b.Spec.Clusters) == "west 2" && b.Spec.Transition == nil
	})
}
