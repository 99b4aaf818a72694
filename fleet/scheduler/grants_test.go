package scheduler

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

var (
	gateways = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}
	grantsOf = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1beta1", Resource: "referencegrants"}
)

const foreignSecret = `
---
apiVersion: v1
kind: Secret
metadata: {name: cert, namespace: certs, uid: cert}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop, uid: g, labels: {fleet.atoll.dev/cluster: west}}
spec:
  gatewayClassName: edge
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: certs}]}}]
`

// TestForeignSecretNeedsGrant: a Gateway brings a Secret of another namespace into a cluster only while a ReferenceGrant of
// that namespace permits it. The grant goes there, too.
func TestForeignSecretNeedsGrant(t *testing.T) {
	c := begin(t, clusters+foreignSecret)
	in := func(namespace, name string) string {
		u := c.Get(v1alpha1.ResourceBindingResource, namespace, name)
		if u == nil {
			return ""
		}
		return strings.Join(clusterNames(as[v1alpha1.ResourceBinding](t, u).Spec.Clusters), " ")
	}
	fakeapi.Until(t, "the Gateway is in west", func() bool { return in("shop", "gateway.gateway.networking.k8s.io-edge") == "west" })
	fakeapi.Until(t, "an event names the grant", func() bool {
		for _, e := range c.List(schema.GroupVersionResource{Version: "v1", Resource: "events"}) {
			if message, _ := e.Object["message"].(string); e.Object["reason"] == ReasonRefNotPermitted && e.GetNamespace() == "shop" && strings.Contains(message, `to: [{group: "", kind: Secret, name: cert}]`) {
				return true
			}
		}
		return false
	})
	if at := in("certs", "secret-cert"); at != "" {
		t.Fatalf("the Secret is in %s", at)
	}
	for _, wrong := range []string{
		`{from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: other}], to: [{group: "", kind: Secret}]}`,
		`{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: "", kind: Secret}]}`,
		`{from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: "", kind: Secret, name: other}, {group: "", kind: ConfigMap}]}`,
	} {
		c.Put(parse(t, "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: certs, uid: rg}\nspec: "+wrong)[0])
		c.Put(parse(t, strings.Replace(foreignSecret, "west", "east", 1))[1])
		fakeapi.Until(t, "the Gateway is in east", func() bool { return in("shop", "gateway.gateway.networking.k8s.io-edge") == "east" })
		c.Put(parse(t, foreignSecret)[1])
		fakeapi.Until(t, "the Gateway is in west", func() bool { return in("shop", "gateway.gateway.networking.k8s.io-edge") == "west" })
		if at := in("certs", "secret-cert"); at != "" {
			t.Fatalf("with %s the Secret is in %s", wrong, at)
		}
	}
	c.Put(parse(t, `apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: g, namespace: certs, uid: rg}
spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: "", kind: Secret, name: cert}]}`)[0])
	fakeapi.Until(t, "the Secret follows, and the grant", func() bool {
		return in("certs", "secret-cert") == "west" && in("certs", "referencegrant.gateway.networking.k8s.io-g") == "west"
	})
	c.Delete(grantsOf, "certs", "g")
	fakeapi.Until(t, "the Secret leaves", func() bool { return in("certs", "secret-cert") == "" })
}
