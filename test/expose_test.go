package test

import (
	"context"
	"slices"
	"strings"
	"testing"
)

const parcelsManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: parcels.expose.test.atoll.dev}
spec:
  group: expose.test.atoll.dev
  scope: Cluster
  names: {plural: parcels, singular: parcel, kind: Parcel}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// The commands expose a group to real members and withdraw it, and return when that has taken effect.
func TestExposeAndUnexpose(t *testing.T) {
	f := whole(t)
	f.apply(t, parcelsManifest)
	// A type is known a moment after it is applied.
	eventually(t, settle, "a role names the type", func(ctx context.Context) error {
		_, err := f.tryKubectl(ctx, "atoll", "", "create", "clusterrole", "parcels", "--verb=get,list", "--resource=parcels.expose.test.atoll.dev")
		return err
	})
	f.kubectl(t, "atoll", "create", "clusterrolebinding", "parcels", "--clusterrole=parcels", "--group=atoll:cluster:east", "--group=atoll:cluster:west")
	t.Cleanup(func() {
		if _, err := f.tryKubectl(context.Background(), "atoll", "", "delete", "clusterrolebinding/parcels", "clusterrole/parcels"); err != nil {
			t.Error(err)
		}
		for _, c := range []string{"atoll", "north"} {
			if _, err := f.tryKubectl(context.Background(), c, "", "delete", "crd", "parcels.expose.test.atoll.dev", "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	})
	served := func(want ...string) {
		t.Helper()
		for name := range f.members {
			out, err := f.tryKubectl(t.Context(), name, "", "get", "apiservices", "-l", "fleet.atoll.dev/managed-by=atoll", "-o", "jsonpath={.items[*].metadata.name}")
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(want, name) != strings.Contains(out, "v1.expose.test.atoll.dev") {
				t.Errorf("%s has APIServices %q; %v should have the group", name, out, want)
			}
		}
	}
	for _, step := range []struct {
		line, prints string
		served       []string
	}{
		{"expose expose.test.atoll.dev --to east", "sharedapi/expose.test.atoll.dev created", []string{"east"}},
		{"expose expose.test.atoll.dev --to west,east", "sharedapi/expose.test.atoll.dev configured: also for west", []string{"east", "west"}},
		{"unexpose expose.test.atoll.dev --from east", "sharedapi/expose.test.atoll.dev configured: no longer for east", []string{"west"}},
	} {
		if out := f.atoll(t, strings.Fields(step.line)...); out != step.prints {
			t.Errorf("atoll %s prints %q", step.line, out)
		}
		served(step.served...)
		f.kubectl(t, step.served[0], "get", "parcels.expose.test.atoll.dev")
	}

	// One that has the group itself is refused, before the time is up.
	if _, err := f.tryKubectl(t.Context(), "north", parcelsManifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	f.kubectl(t, "north", "wait", "crd/parcels.expose.test.atoll.dev", "--for=condition=Established", "--timeout=30s")
	_, err := f.run(t.Context(), "atoll", f.Kubeconfig(), "", "expose", "expose.test.atoll.dev", "--to", "north", "--timeout", "5m")
	if err == nil || !strings.Contains(err.Error(), "north: GroupConflict: ") || !strings.Contains(err.Error(), "delete its CustomResourceDefinitions") {
		t.Errorf("a conflict is answered with %v", err)
	}
	f.atoll(t, "unexpose", "expose.test.atoll.dev")
	served()
	f.kubectl(t, "north", "get", "parcels.expose.test.atoll.dev")
}
