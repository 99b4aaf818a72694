package test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// objectFault is something that is the matter with an object in one cluster, west.
type objectFault struct {
	// name of the fault, and of a namespace for it alone.
	name string
	// manifest of the object as it is applied to Atoll; the other manifests are in the member first.
	manifest string
	before   []string
	// ownSpace: the member has the namespace first, and it is not adopted.
	ownSpace bool
	// begin brings the fault about when the object is there; nil if it is there first.
	begin func(*faulty)
	// What the binding says of the cluster meanwhile, with words of the trouble and of
	// the remedy; and whether its condition Applied is fine with that.
	reason string
	words  []string
	fine   bool
	// heal does what the remedy says.
	heal func(*faulty)
	// remade: the member takes the object away itself.
	remade bool
}

// faulty is a row of the matrix while it is gone through.
type faulty struct {
	*fixture
	*testing.T
	*objectFault
	atoll, west dynamic.Interface
	hooks       *hookServer
	space       string
	gvk         schema.GroupVersionKind
	gvr         schema.GroupVersionResource
	object      *unstructured.Unstructured
}

// objectFaults lists the reasons for which a member can refuse or change an object.
func objectFaults() []objectFault {
	return []objectFault{
		{name: "full", manifest: faultDeployment, before: []string{`{apiVersion: v1, kind: ResourceQuota, metadata: {name: small}, spec: {hard: {count/deployments.apps: "0"}}}`},
			reason: v1alpha1.StateApplyFailed, words: []string{"exceeded quota: small", "raise the ResourceQuota there"},
			heal: func(f *faulty) { f.inWest("v1", "resourcequotas").delete("small") }},
		{name: "taken", manifest: faultDeployment, before: []string{faultDeployment},
			reason: v1alpha1.StateConflict, words: []string{"was not created by this fleet", "adopt it with `atoll adopt`", "fleet.atoll.dev/adopt=true"},
			heal: func(f *faulty) { f.annotate(v1alpha1.AdoptAnnotation, "true") }},
		{name: "space", manifest: faultDeployment, ownSpace: true,
			reason: v1alpha1.StateConflict, words: []string{"namespace fault-space already exists", "was not created by this fleet", "adopt it with `atoll adopt namespace/fault-space`", "fleet.atoll.dev/adopt=true"},
			heal: (*faulty).adoptSpace},
		{name: "twin", manifest: faultDeployment, before: []string{strings.Replace(faultDeployment, "{name: app}",
			"{name: app, labels: {fleet.atoll.dev/managed: 'true'}, annotations: {fleet.atoll.dev/cluster: elsewhere, fleet.atoll.dev/source-uid: another}}", 1)},
			reason: v1alpha1.StateConflict, words: []string{"belongs to cluster elsewhere", "delete or rename it there"}, remade: true,
			heal: func(f *faulty) { f.inWest("apps/v1", "deployments").delete("app") }},
		{name: "contested", manifest: faultDeployment, begin: (*faulty).contest,
			reason: v1alpha1.StateContested, words: []string{"rival", "spec.minReadySeconds", "spec.drift: Report"},
			heal: func(f *faulty) { f.inWest("v1", "configmaps").delete("rivalry") }},
		{name: "write", manifest: `{apiVersion: batch/v1, kind: CronJob, metadata: {name: app}, spec: {schedule: "0 0 1 1 *", suspend: true, jobTemplate: {spec: {template: {spec: {restartPolicy: Never,
			containers: [{name: app, image: nginx}]}}}}}}`, begin: func(f *faulty) { f.revoke("write-jobs") },
			reason: v1alpha1.StateForbidden, words: []string{`cannot patch resource "cronjobs"`, "grant that permission in the cluster to the identity that Atoll uses there", "--allow cronjobs.batch"},
			heal: func(f *faulty) { f.grant("write-jobs") }},
		{name: "read", manifest: `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: app}, spec: {replicas: 1, serviceName: app, selector: {matchLabels: {app: app}},
			template: {metadata: {labels: {app: app}}, spec: {containers: [{name: app, image: nginx}]}}}}`,
			reason: v1alpha1.StateForbidden, words: []string{`cannot get resource "statefulsets"`, "grant that"},
			heal: func(f *faulty) { f.grant("statefulsets") }},
		{name: "watch", manifest: `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: app}, spec: {replicas: 1, selector: {matchLabels: {app: app}},
			template: {metadata: {labels: {app: app}}, spec: {containers: [{name: app, image: nginx}]}}}}`, fine: true,
			reason: v1alpha1.StateUnwatched, words: []string{`cannot list resource "replicasets"`, "grant that"},
			heal: func(f *faulty) { f.grant("watch-replicasets") }},
		{name: "refused", manifest: faultDeployment, begin: func(f *faulty) { f.hook("/refuse") },
			reason: v1alpha1.StateApplyFailed, words: []string{"denied the request: not today", "change the object, or the rule in the cluster"},
			heal: (*faulty).unhook},
		{name: "silent", manifest: faultDeployment, begin: func(f *faulty) { f.hook("/hang") },
			reason: v1alpha1.StateApplyFailed, words: []string{"failed calling webhook", "repair the webhook in the cluster"},
			heal: (*faulty).unhook},
		{name: "terminating", manifest: faultDeployment, begin: (*faulty).terminate, remade: true,
			reason: v1alpha1.StateApplyFailed, words: []string{"being terminated", "recreated once the namespace is gone there", "kubectl describe namespace"},
			heal: func(f *faulty) { f.inWest("v1", "configmaps").patch("held", `{"metadata":{"finalizers":null}}`) }},
		{name: "untyped", manifest: `{apiVersion: faults.example.com/v1, kind: Thing, metadata: {name: app}, spec: {size: 1}}`, begin: (*faulty).untype, remade: true,
			reason: v1alpha1.StateApplyFailed, words: []string{"does not serve things.faults.example.com", "install the type there"},
			heal: func(f *faulty) { f.put(f.T, "west", faultCRD("Thing")) }},
	}
}

const faultDeployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: app}, spec: {replicas: 1, minReadySeconds: 1, selector: {matchLabels: {app: app}},
  template: {metadata: {labels: {app: app}}, spec: {containers: [{name: app, image: nginx}]}}}}`

func faultCRD(kind string) string {
	plural := strings.ToLower(kind) + "s"
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[1]s.faults.example.com},
spec: {group: faults.example.com, scope: Namespaced, names: {plural: %[1]s, singular: %[2]s, kind: %[3]s},
versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}]}}`,
		plural, strings.ToLower(kind), kind)
}

// suffer tests one row: during the fault, existing objects stay unchanged and the binding names the remedy;
// after the remedy, changes made during the fault arrive.
func (f *faulty) suffer() {
	f.make()
	var before types.UID
	switch {
	case f.begin != nil:
		f.await("the object is in the member", func(ctx context.Context) error { return f.says(ctx, "", nil) })
		before = f.uid()
		f.begin(f)
	case len(f.before) > 0 && f.reason == v1alpha1.StateConflict:
		before = f.uid()
	}
	f.annotate("example.org/seen", "meanwhile")
	f.await("the binding says what to do", func(ctx context.Context) error { return f.says(ctx, f.reason, f.words) })
	f.await("an event says it, too", f.told)
	if now := f.uid(); before != "" && now != before && (!f.remade || f.reason == v1alpha1.StateConflict) {
		f.Errorf("the object had UID %s and has %q: it was deleted or recreated", before, now)
	}
	f.heal(f)
	f.await("changes made during the fault have arrived", func(ctx context.Context) error {
		u, err := f.west.Resource(f.gvr).Namespace(f.space).Get(ctx, "app", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if u.GetAnnotations()["example.org/seen"] != "meanwhile" {
			return fmt.Errorf("its annotations are %v", u.GetAnnotations())
		}
		return f.says(ctx, "", nil)
	})
	if now := f.uid(); before != "" && now != before && !f.remade {
		f.Errorf("the object had UID %s and has %q now that the fault is over", before, now)
	}
}

// make creates the namespace and the object in Atoll, and the objects that must exist in the member before.
func (f *faulty) make() {
	f.object = f.parse(f.manifest)
	f.gvk = f.object.GroupVersionKind()
	f.gvr, _ = meta.UnsafeGuessKindToResource(f.gvk)
	f.create(f.atoll, "", fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {%s: west}}}`, f.space, v1alpha1.ClusterLabel))
	if len(f.before) > 0 {
		f.adoptSpace()
	}
	if len(f.before) > 0 || f.ownSpace {
		f.create(f.west, "", fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s}}`, f.space))
	}
	for _, manifest := range f.before {
		f.create(f.west, f.space, manifest)
	}
	f.create(f.atoll, f.space, f.manifest)
}

// adoptSpace lets objects be put into the namespace that the member has.
func (f *faulty) adoptSpace() {
	f.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"west"}}}`, v1alpha1.AdoptAnnotation)
	namespaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := f.atoll.Resource(namespaces).Patch(f.Context(), f.space, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *faulty) parse(manifest string) *unstructured.Unstructured {
	f.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		f.Fatalf("%v: %s", err, manifest)
	}
	return u
}

// create makes an object, when its type and namespace are there.
func (f *faulty) create(at dynamic.Interface, namespace, manifest string) {
	f.Helper()
	u := f.parse(manifest)
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	f.await("made "+u.GetKind()+" "+u.GetName(), func(ctx context.Context) error {
		_, err := at.Resource(gvr).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

func (f *faulty) await(what string, check func(ctx context.Context) error) {
	f.Helper()
	eventually(f.T, settle, f.name+": "+what, check)
}

// uid returns the UID of the object in the member, or "" if it does not exist.
func (f *faulty) uid() types.UID {
	f.Helper()
	u, err := f.west.Resource(f.gvr).Namespace(f.space).Get(f.Context(), "app", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		f.Fatal(err)
	}
	return u.GetUID()
}

func (f *faulty) annotate(key, value string) {
	f.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
	if _, err := f.atoll.Resource(f.gvr).Namespace(f.space).Patch(f.Context(), "app", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		f.Fatal(err)
	}
}

// says returns an error unless the binding reports this reason for west, with these words, and its own
// condition agrees. Without a reason, the binding must report success.
func (f *faulty) says(ctx context.Context, reason string, words []string) error {
	u, err := f.atoll.Resource(v1alpha1.ResourceBindingResource).Namespace(f.space).Get(ctx, v1alpha1.BindingName(f.gvk.GroupKind(), "app"), metav1.GetOptions{})
	if err != nil {
		return err
	}
	b := &v1alpha1.ResourceBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, b); err != nil {
		return err
	}
	state, _ := b.State("west")
	if state.Reason != reason || reason == "" && state.UID == "" {
		return fmt.Errorf("west says %q: %s", state.Reason, state.Message)
	}
	applied := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BindingApplied)
	if applied == nil || (applied.Status == metav1.ConditionTrue) != (reason == "" || f.fine) {
		return fmt.Errorf("condition Applied is %+v", applied)
	}
	for _, w := range words {
		if !strings.Contains(state.Message, w) || !f.fine && !strings.Contains(applied.Message, w) {
			return fmt.Errorf("west says %q, and Applied %q, without %q", state.Message, applied.Message, w)
		}
	}
	return nil
}

// told returns an error unless an event of the object has the binding's message.
func (f *faulty) told(ctx context.Context) error {
	list, err := f.client(f.T, "atoll").CoreV1().Events(f.space).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,reason=" + f.reason})
	if err != nil {
		return err
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.InvolvedObject.Kind == f.gvk.Kind && e.InvolvedObject.Name == "app" && strings.Contains(e.Message, f.words[0]) {
			return nil
		}
	}
	return fmt.Errorf("none of %d events does", len(list.Items))
}

// things are objects of one resource in the row's namespace in west.
type things struct {
	*faulty
	dynamic.ResourceInterface
}

func (f *faulty) inWest(apiVersion, resource string) things {
	gv, _ := schema.ParseGroupVersion(apiVersion)
	return things{f, f.west.Resource(gv.WithResource(resource)).Namespace(f.space)}
}

func (t things) delete(name string) {
	t.Helper()
	if err := t.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (t things) patch(name, patch string) {
	t.Helper()
	if _, err := t.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// contest runs another manager that changes a field again each time the fleet has corrected it, while a
// ConfigMap in the namespace enables it.
func (f *faulty) contest() {
	f.create(f.west, f.space, `{apiVersion: v1, kind: ConfigMap, metadata: {name: rivalry}}`)
	rival := f.inWest("apps/v1", "deployments")
	ctx := f.Context()
	go func() {
		for tick := time.NewTicker(200 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := f.inWest("v1", "configmaps").Get(ctx, "rivalry", metav1.GetOptions{}); apierrors.IsNotFound(err) {
				return
			}
			_, _ = rival.Patch(ctx, "app", types.MergePatchType, []byte(`{"spec":{"minReadySeconds":7}}`), metav1.PatchOptions{FieldManager: "rival"})
		}
	}()
}

// terminate deletes the namespace in the member, where something holds it.
func (f *faulty) terminate() {
	f.create(f.west, f.space, `{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [example.org/held]}}`)
	if err := f.client(f.T, "west").CoreV1().Namespaces().Delete(f.Context(), f.space, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}

// untype deletes the type of the object in the member, which takes the object along.
func (f *faulty) untype() {
	crds := f.west.Resource(crdsResource)
	if err := crds.Delete(f.Context(), "things.faults.example.com", metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
	f.await("the type is gone", func(ctx context.Context) error {
		_, err := crds.Get(ctx, "things.faults.example.com", metav1.GetOptions{})
		return wantNotFound(err)
	})
}

// revoke takes a role from Atoll's identity in the member, and waits until that has
// come through.
func (f *faulty) revoke(role string) {
	bindings := f.client(f.T, "west").RbacV1().ClusterRoleBindings()
	if err := bindings.Delete(f.Context(), faultIdentity+"-"+role, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
	reviews := f.client(f.T, "west").AuthorizationV1().SubjectAccessReviews()
	f.await("the permission is gone", func(ctx context.Context) error {
		review, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:kube-system:" + faultIdentity, Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: f.space, Verb: "patch", Group: f.gvr.Group, Resource: f.gvr.Resource}}}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed {
			err = errors.New("it is granted still")
		}
		return err
	})
}

func (f *faulty) grant(role string) { f.create(f.west, "", faultBinding(role)) }

// hook has a webhook judge the Deployments of the row's namespace.
func (f *faulty) hook(path string) {
	f.create(f.west, "", f.hooks.configuration(f.space, path))
	deployments := f.inWest("apps/v1", "deployments")
	f.await("the webhook is asked", func(ctx context.Context) error {
		_, err := deployments.Patch(ctx, "app", types.MergePatchType, []byte(`{"spec":{"paused":true}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it is not")
		}
		return nil
	})
}

func (f *faulty) unhook() {
	f.Helper()
	if err := f.client(f.T, "west").AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(f.Context(), f.space, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}
