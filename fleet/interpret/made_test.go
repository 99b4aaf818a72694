package interpret

import "testing"

// TestMakes: how well-known operators name the Secrets that they make.
func TestMakes(t *testing.T) {
	const database = `{apiVersion: example.com/v1, kind: Database, metadata: {name: orders}, spec: {size: 3, writeTo: [{secret: orders-writer-conn}, {secret: elsewhere}]}, status: {binding: {name: from-status}}}`
	for name, want := range map[string]bool{
		"orders":                  true, // a KafkaUser, an ExternalSecret
		"orders-app":              true,
		"orders.credentials":      true,
		"admin.orders.postgresql": true,
		"kubeconfig-orders":       true,
		"elsewhere":               true, // spec.secretName of a Certificate
		"from-status":             true,
		"ordersapp":               false,
		"backorders":              false,
		"reorders-app":            false,
		"3":                       false,
		"other":                   false,
		"":                        false,
	} {
		if got := Makes(parse(t, database), name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
	if Makes(parse(t, `{apiVersion: example.com/v1, kind: Database}`), "a") {
		t.Error("a resource without a name")
	}
}

// TestReads: what pods do not start without. An optional object and the Secret of an image registry are not
// among it.
func TestReads(t *testing.T) {
	obj := parse(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: n}, spec: {template: {spec: {
  imagePullSecrets: [{name: registry}],
  initContainers: [{name: i, envFrom: [{configMapRef: {name: all}}]}],
  containers: [{name: c, envFrom: [{secretRef: {name: maybe, optional: true}}], env: [
    {name: A, valueFrom: {secretKeyRef: {name: password, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: password, key: l}}},
    {name: C, valueFrom: {configMapKeyRef: {name: perhaps, key: k, optional: true}}}]}],
  volumes: [{name: v, secret: {secretName: certificate}}, {name: w, projected: {sources: [{configMap: {name: ca}}]}}]}}}}`)
	k, _ := Find(obj.GroupVersionKind().GroupKind())
	var got string
	for _, ref := range k.Reads(obj) {
		got += " " + ref.Kind + "/" + ref.Name
	}
	if want := " ConfigMap/all Secret/password Secret/certificate ConfigMap/ca"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
