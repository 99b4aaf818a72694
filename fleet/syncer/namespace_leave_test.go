package syncer

import (
	"log/slog"
	"testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestRemoveNamespaces: when a cluster leaves, the empty namespaces that its syncer created go. Those with objects, those
// of other clusters and those of users stay.
func TestRemoveNamespaces(t *testing.T) {
	member := fakeapi.New(t, fakeapi.BuiltIns("v1 ConfigMap", "v1 Namespace")...)
	for name, stays := range map[string]bool{"empty": false, "full": true, "other": true, "theirs": true} {
		ns := memberNamespace()
		ns.SetName(name)
		if name == "other" {
			ns.SetAnnotations(map[string]string{v1alpha1.ClusterAnnotation: "west"})
		}
		if name == "theirs" {
			ns.SetLabels(nil)
		}
		member.Put(ns)
		if name == "full" {
			member.Put(object("v1", "ConfigMap", name, "conf", "conf-uid", nil))
		}
		if err := RemoveNamespaces(t.Context(), slog.New(slog.DiscardHandler), "east", member.Config()); err != nil {
			t.Fatal(err)
		}
		if there := member.Get(namespaces(), "", name) != nil; there != stays {
			t.Errorf("namespace %s is there: %t", name, there)
		}
	}
}
