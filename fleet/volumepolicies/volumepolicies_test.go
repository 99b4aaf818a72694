package volumepolicies

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// TestAccepted: of two policies for a class, the older one is in effect, and the other one says so until it is deleted.
func TestAccepted(t *testing.T) {
	api := fakeapi.New(t, append(fakeapi.CRDsOf(t, v1alpha1.CRDs), fakeapi.BuiltIns("v1 Namespace", "v1 Event", "v1 Secret", "apiextensions.k8s.io/v1 CustomResourceDefinition")...)...)
	put := func(name, created, spec string) {
		u := &unstructured.Unstructured{}
		manifest := fmt.Sprintf(`{apiVersion: fleet.atoll.dev/v1alpha1, kind: VolumePolicy, metadata: {name: %[1]s, uid: %[1]s, generation: 1, creationTimestamp: "%[2]s"}, spec: {%[3]s}}`, name, created, spec)
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			t.Fatal(err)
		}
		api.Put(u)
	}
	put("first", "2026-01-01T00:00:00Z", "storageClasses: [fast], mode: None")
	put("second", "2026-01-02T00:00:00Z", "storageClasses: [fast], mode: Shared")
	put("third", "2026-01-03T00:00:00Z", "storageClasses: [nfs, fast], mode: Shared")
	ctx, stop := context.WithCancel(t.Context())
	session, err := fleet.NewSession(ctx, fleet.Config{REST: api.Config(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, session) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	is := func(name, want string) {
		t.Helper()
		fakeapi.Eventually(t, name+" is "+want, func() error {
			p := &v1alpha1.VolumePolicy{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(api.Get(v1alpha1.VolumePolicyResource, "", name).Object, p); err != nil {
				return err
			}
			c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.PlacementAccepted)
			if c == nil || fmt.Sprint(c.Status, " ", c.Reason, ": ", c.Message) != want || c.ObservedGeneration != p.Generation {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	const effective = "True Accepted: the policy is in effect"
	is("first", effective)
	is("second", "False Overruled: the policy has no effect, because older policies decide about fast by VolumePolicy first: edit or delete one of them")
	is("third", "True Accepted: the policy is in effect, but older policies decide about fast by VolumePolicy first")
	put("all", "2026-01-04T00:00:00Z", "mode: Shared")
	put("all-again", "2026-01-05T00:00:00Z", `storageClasses: ["*"], mode: None`)
	is("all", effective)
	is("all-again", "False Overruled: the policy has no effect, because older policies decide about all other classes by VolumePolicy all: edit or delete one of them")
	api.Delete(v1alpha1.VolumePolicyResource, "", "first")
	is("second", effective)
	is("third", "True Accepted: the policy is in effect, but older policies decide about fast by VolumePolicy second")
}
