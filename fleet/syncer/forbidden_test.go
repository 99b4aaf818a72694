package syncer

import (
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/test/fakeapi"
)

// forbids returns the response of RBAC to each request for a resource, as long as on is set.
func forbids(resource schema.GroupVersionResource, on *atomic.Bool) func(fakeapi.Request) *metav1.Status {
	return func(r fakeapi.Request) *metav1.Status {
		if !on.Load() || r.Resource.GroupResource() != resource.GroupResource() {
			return nil
		}
		return forbidden(resource.GroupResource(), `User "atoll" cannot `+r.Verb+` resource "`+resource.Resource+`"`)
	}
}

func forbidden(resource schema.GroupResource, message string) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: 403,
		Message: resource.String() + " is forbidden: " + message, Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource}}
}

// TestForbiddenKind: the member permits nothing for one kind. Its objects are reported with the reason and the remedy, none
// is removed, other kinds are synced, and the objects are synced when the permission is there.
func TestForbiddenKind(t *testing.T) {
	var on atomic.Bool
	on.Store(true)
	job := binding(true, nil)
	job.SetName("job.batch-conf")
	job.SetUID("binding-job")
	withSpec(job, "resource", map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "conf", "uid": "source-job"})
	s := &fixture{t: t, refuse: forbids(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, &on)}
	s.start(objects(configMap("source"), binding(true, nil), object("batch/v1", "Job", "shop", "conf", "source-job", map[string]any{"spec": map[string]any{}}), job), nil)
	state := func() v1alpha1.ClusterState {
		b := &v1alpha1.ResourceBinding{}
		s.control.Read(v1alpha1.ResourceBindingResource, "shop", "job.batch-conf", b)
		state, _ := b.State("east")
		return state
	}
	s.eventually("it is reported", func() bool { return state().Reason == v1alpha1.StateForbidden })
	for _, words := range []string{`cannot get resource "jobs"`, "--roles-only --allow jobs.batch", "fleet.atoll.dev/aggregate-to-syncer=true"} {
		if message := state().Message; !strings.Contains(message, words) {
			t.Errorf("message %q does not contain %q", message, words)
		}
	}
	s.eventually("another kind is synced", func() bool { return s.conf() != nil && s.state().UID != "" })
	on.Store(false)
	s.eventually("it is synced", func() bool { return state().Reason == "" && state().UID != "" })

	on.Store(true)
	s.control.Merge(schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, "shop", "conf", `{"spec":{"suspend":true}}`)
	s.eventually("it is reported again", func() bool { return state().Reason == v1alpha1.StateForbidden && state().UID != "" })
	for _, entry := range s.settle() {
		if strings.Contains(entry, "member delete") {
			t.Errorf("the journal has %q", entry)
		}
	}
}

// TestForbiddenRemoval: an object that a cluster never accepted, because it permits nothing for its kind, does not hold its binding. One
// that was seen there does, until it can be removed.
func TestForbiddenRemoval(t *testing.T) {
	for name, uid := range map[string]types.UID{"never seen": "", "seen": "object-uid"} {
		t.Run(name, func(t *testing.T) {
			var on atomic.Bool
			on.Store(true)
			s := &fixture{t: t, refuse: forbids(configMaps, &on)}
			entry := &v1alpha1.ClusterState{UID: uid}
			if uid == "" {
				entry.Reason = v1alpha1.StateForbidden
			}
			s.start(objects(binding(false, entry)), nil)
			if uid != "" {
				s.eventually("the removal waits", func() bool {
					return s.state().Reason == v1alpha1.StateRemoving && strings.Contains(s.state().Message, "grant that permission")
				})
				on.Store(false)
			}
			s.eventually("the binding has no entry", func() bool { return s.state().Name == "" })
		})
	}
}

// TestForbiddenListHoldsNamespace: a namespace stays while the syncer may not list a type there, with a message that names
// the type, and it holds no binding.
func TestForbiddenListHoldsNamespace(t *testing.T) {
	var on atomic.Bool
	on.Store(true)
	s := &fixture{t: t, refuse: forbids(widgets, &on)}
	s.start(objects(binding(false, &v1alpha1.ClusterState{UID: "object-uid"})), objects(memberNamespace()))
	s.eventually("the binding has no entry", func() bool { return s.state().Name == "" })
	_, err := s.syncer.member.contentOf(t.Context(), "shop")
	if err == nil || !strings.Contains(err.Error(), "may not list widgets.example.com") || !strings.Contains(err.Error(), v1alpha1.AggregateToSyncerLabel) {
		t.Errorf("the content of the namespace: %v", err)
	}
	there := func() bool {
		return s.member.Get(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "shop") != nil
	}
	if !there() {
		t.Fatal("the namespace was deleted, although it is not known to be empty")
	}
	on.Store(false)
	s.eventually("the namespace is gone", func() bool { return !there() })
}

// TestPermit: the remedy names the resource that the member names, if it is one, and the flag for roles.
func TestPermit(t *testing.T) {
	for want, status := range map[string]*metav1.Status{
		"--allow widgets.example.com`": forbidden(schema.GroupResource{Group: "example.com", Resource: "widgets"}, `User "atoll" cannot list resource "widgets"`),
		"--allow secrets`":             forbidden(schema.GroupResource{Resource: "secrets"}, `User "atoll" cannot list resource "secrets"`),
		"--allow RESOURCE.GROUP`":      forbidden(schema.GroupResource{Resource: "x; rm -rf /"}, `User "atoll" cannot list resource "x"`),
		"--allow-rbac`":                forbidden(schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "roles"}, `user "atoll" is attempting to grant RBAC permissions not currently held`),
	} {
		err := &apierrors.StatusError{ErrStatus: *status}
		if got := explain(err); !lacksPermission(err) || !strings.Contains(got, want) {
			t.Errorf("%q does not contain %q", got, want)
		}
	}
}
