package expose

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	wantWidgets = "Namespace/atoll-system Service/atoll EndpointSlice/atoll-v4-7443 ClusterRole/atoll:edit:a.example ClusterRole/atoll:view:a.example APIService/v1.a.example"
)

type objects = []*unstructured.Unstructured

// world returns a control plane with group a.example and one server.
func world(more ...*unstructured.Unstructured) objects {
	return append(objects{crd("widgets", "a.example", "True", "v1"), lease("one", "10.0.0.1:7443")}, more...)
}

func TestExposeAndRemove(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{
		"east": {authority(t)}, "west": {authority(t)}})
	s.having("east", wantWidgets)
	s.reporting("s east=Exposed[a.example/v1]")
	if first := slices.IndexFunc(s.written(), func(w string) bool { return strings.HasPrefix(w, "east ") }); first < 0 ||
		!slices.Contains(s.written()[:first], "control patch customresourcedefinitions widgets.a.example") {
		t.Errorf("the CRD is not labelled as shared before the member is configured: %v", s.written())
	}
	if got := s.has("west"); got != "" {
		t.Errorf("west, which is not selected, has %s", got)
	}
	s.eventually("the front proxy is recorded", func() bool {
		names, _, _ := unstructured.NestedStringSlice(s.control.Get(v1alpha1.ClusterResource, "", "east").Object, "status", "frontProxy", "allowedNames")
		return len(names) == 1 && names[0] == "front-proxy-client"
	})

	// West too, then only west.
	s.control.Change(v1alpha1.SharedAPIResource, "", "s", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedStringSlice(u.Object, []string{"east", "west"}, "spec", "clusters")
	})
	s.reporting("s east=Exposed[a.example/v1] west=Exposed[a.example/v1]")
	s.control.Change(v1alpha1.SharedAPIResource, "", "s", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedStringSlice(u.Object, []string{"west"}, "spec", "clusters")
	})
	s.having("east", "")
	s.reporting("s west=Exposed[a.example/v1]")

	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.having("west", "")
	s.eventually("the SharedAPI is gone", func() bool { return s.control.Get(v1alpha1.SharedAPIResource, "", "s") == nil })
	for _, name := range []string{"east", "west"} {
		s.eventually(name+" is released", func() bool {
			u := s.control.Get(v1alpha1.ClusterResource, "", name)
			_, known, _ := unstructured.NestedMap(u.Object, "status", "frontProxy")
			return len(u.GetFinalizers()) == 0 && !known
		})
	}
}

func TestRepair(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	east := s.members["east"]

	east.Delete(apiServices, "", "v1.a.example")
	s.having("east", wantWidgets)

	east.Change(apiServices, "", "v1.a.example", func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, "elsewhere", "spec", "service", "name")
	})
	s.eventually("the edit is reverted", func() bool {
		name, _, _ := unstructured.NestedString(east.Get(apiServices, "", "v1.a.example").Object, "spec", "service", "name")
		return name == Service
	})

	services := resourceOf(t, "Service")
	east.Change(services, v1alpha1.SystemNamespace, Service, func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"name": "https", "port": int64(444)}}, "spec", "ports")
	})
	s.eventually("the port is corrected", func() bool {
		ports, _, _ := unstructured.NestedSlice(east.Get(services, v1alpha1.SystemNamespace, Service).Object, "spec", "ports")
		return len(ports) == 1 && ports[0].(map[string]any)["port"] == int64(443)
	})
}

// TestUnavailable: a connection problem that the member reports is passed on.
func TestUnavailable(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	s.members["east"].Change(apiServices, "", "v1.a.example", func(u *unstructured.Unstructured) {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Available", "status": "False", "message": "no route to host"}}}
	})
	s.reporting("s east=Unavailable")
}

// TestListed: Exposed means that the kinds are in discovery.
func TestListed(t *testing.T) {
	s := open(t, world(), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.silent.Store(true)
	s.control.Put(shared("s", []string{"east"}, "a.example"))
	s.having("east", wantWidgets)
	s.reporting("s east=Applying")
	s.silent.Store(false)
	s.reporting("s east=Exposed[a.example/v1]")
}

// TestFollow: versions and servers are added and removed.
func TestFollow(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")

	s.control.Change(crdResource, "", "widgets.a.example", func(u *unstructured.Unstructured) {
		u.Object["spec"] = crd("widgets", "a.example", "True", "v1", "v2").Object["spec"]
	})
	s.reporting("s east=Exposed[a.example/v1 a.example/v2]")
	s.control.Change(crdResource, "", "widgets.a.example", func(u *unstructured.Unstructured) {
		u.Object["spec"] = crd("widgets", "a.example", "True", "!v1", "v2").Object["spec"]
	})
	s.reporting("s east=Exposed[a.example/v2]")
	s.eventually("the old version is removed", func() bool { return !strings.Contains(s.has("east"), "APIService/v1.a.example") })

	s.control.Put(lease("two", "10.0.0.2:8443"))
	s.eventually("the second server is added", func() bool { return strings.Contains(s.has("east"), "atoll-v4-8443") })
	s.control.Delete(leaseResource, v1alpha1.SystemNamespace, "two")
	s.eventually("the second server is removed", func() bool { return !strings.Contains(s.has("east"), "atoll-v4-8443") })

	s.control.Delete(crdResource, "", "widgets.a.example")
	s.reporting("s east=NoSuchGroup")
	s.having("east", "")
}

func TestRefused(t *testing.T) {
	foreign := plain("apiregistration.k8s.io/v1", apiServiceKind, "", "v1.a.example", map[string]any{
		"spec": map[string]any{"group": "a.example", "version": "v1"}})
	tests := []struct {
		name    string
		control objects
		east    objects
		west    objects
		want    string
	}{
		{"the member has the group", world(shared("s", []string{"east"}, "a.example")), objects{authority(t), foreign}, nil, "s east=GroupConflict"},
		{"no front proxy", world(shared("s", []string{"east"}, "a.example")), nil, nil, "s east=NoFrontProxy"},
		{"no such group", world(shared("s", []string{"east"}, "b.example")), objects{authority(t)}, nil, "s east=NoSuchGroup"},
		{"no such cluster", world(shared("s", []string{"north"}, "a.example")), nil, nil, "s north=NoSuchCluster"},
		{"no server", objects{crd("widgets", "a.example", "True", "v1"), lease("one", "127.0.0.1:7443")}[:2:2], nil, nil, ""},
		{"two SharedAPIs for one group", world(shared("s", []string{"east"}, "a.example"), shared("t", []string{"east"}, "a.example")), objects{authority(t)}, nil,
			"s east=Exposed[a.example/v1]; t east=GroupConflict"},
		{"a foreign Service with our name", world(shared("s", []string{"east"}, "a.example")),
			objects{authority(t), plain("v1", "Service", v1alpha1.SystemNamespace, Service, nil)}, nil, "s east=GroupConflict"},
	}
	// The server announces an address that only its own machine can use.
	tests[4].control = append(tests[4].control, shared("s", []string{"east"}, "a.example"))
	tests[4].east, tests[4].want = objects{authority(t)}, "s east=NoServers"
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, tt.control, map[string][]*unstructured.Unstructured{"east": tt.east, "west": tt.west})
			s.reporting(tt.want)
			if strings.Contains(s.has("east"), apiServiceKind) != strings.Contains(tt.want, "Exposed") {
				t.Errorf("east has %s", s.has("east"))
			}
			for _, o := range tt.east {
				if s.members["east"].Get(resourceOf(t, o.GetKind()), o.GetNamespace(), o.GetName()) == nil {
					t.Errorf("%s %s of the member was deleted", o.GetKind(), o.GetName())
				}
			}
		})
	}
}

// TestPublishedAuthorityOfAnother: a member that publishes the authority of another one is refused, and the other one is served
// as before, also by the next leader. Of two that publish the same from the beginning, one is served.
func TestPublishedAuthorityOfAnother(t *testing.T) {
	same := authority(t)
	s := open(t, world(shared("s", []string{"east", "west"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {same.DeepCopy()}, "west": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1] west=Exposed[a.example/v1]")
	s.members["west"].Put(same.DeepCopy())
	s.reporting("s east=Exposed[a.example/v1] west=SharedAuthority")
	s.eventually("nothing is recorded for west", func() bool {
		_, recorded, _ := unstructured.NestedMap(s.control.Get(v1alpha1.ClusterResource, "", "west").Object, "status", "frontProxy")
		return !recorded
	})
	s.restart()
	s.control.Put(lease("two", "10.0.0.2:8443"))
	s.eventually("the next leader serves east", func() bool { return strings.Contains(s.has("east"), "atoll-v4-8443") })
	s.reporting("s east=Exposed[a.example/v1] west=SharedAuthority")

	s = open(t, world(shared("s", []string{"east", "west"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {same.DeepCopy()}, "west": {same.DeepCopy()}})
	s.eventually("one of the two is served", func() bool {
		got := s.reports()
		return got == "s east=Exposed[a.example/v1] west=SharedAuthority" || got == "s east=SharedAuthority west=Exposed[a.example/v1]"
	})
}

// TestUnreachable: the record of a member that does not answer is kept, also by the next leader.
func TestUnreachable(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	answers := func(status string) {
		s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedSlice(u.Object, []any{ready(status)}, "status", "conditions")
		})
	}
	answers("False")
	s.reporting("s east=ClusterUnreachable")
	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.restart()
	s.eventually("the new leader reports it too", func() bool { return s.reports() == "s east=ClusterUnreachable" })
	if got := s.has("east"); got != wantWidgets {
		t.Errorf("east, which does not answer, has %s", got)
	}
	answers("True")
	s.having("east", "")
	s.eventually("the SharedAPI is gone", func() bool { return s.control.Get(v1alpha1.SharedAPIResource, "", "s") == nil })
}

// TestNextLeader: a new leader writes nothing if everything is up to date.
func TestNextLeader(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	s.having("east", wantWidgets)
	s.restart()
	before := len(s.written())
	// The new leader has finished its first round when it handles a change.
	s.control.Put(lease("two", "10.0.0.2:8443"))
	s.eventually("the new leader acts", func() bool { return strings.Contains(s.has("east"), "atoll-v4-8443") })
	s.reporting("s east=Exposed[a.example/v1]")
	for _, w := range s.written()[before:] {
		if w != "east apply endpointslices atoll-v4-8443" {
			t.Errorf("the new leader wrote %s", w)
		}
	}
}

func TestLeave(t *testing.T) {
	for _, orphan := range []bool{false, true} {
		s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
		s.reporting("s east=Exposed[a.example/v1]")
		if orphan {
			s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
				u.SetAnnotations(map[string]string{v1alpha1.LeaveAnnotation: v1alpha1.LeaveOrphan})
				_ = unstructured.SetNestedSlice(u.Object, []any{ready("False")}, "status", "conditions")
			})
		}
		s.control.Delete(v1alpha1.ClusterResource, "", "east")
		s.eventually("the Cluster is gone", func() bool { return s.control.Get(v1alpha1.ClusterResource, "", "east") == nil })
		if got := s.has("east"); (got != "") != orphan {
			t.Errorf("orphan %v: the member has %q", orphan, got)
		}
		s.reporting("s east=NoSuchCluster")
	}
}

// TestModePull: a cluster in mode Pull is rejected with a reason, and can leave like any other.
// Objects from an earlier Push mode stay recorded.
func TestModePull(t *testing.T) {
	mode := func(s *fixture, mode string) {
		s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(u.Object, mode, "spec", "mode")
		})
	}
	s := open(t, world(), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	mode(s, string(v1alpha1.ModePull))
	s.control.Put(shared("s", []string{"east"}, "a.example"))
	s.reporting("s east=ClusterPulls")
	if finalizers := s.control.Get(v1alpha1.ClusterResource, "", "east").GetFinalizers(); len(finalizers) > 0 {
		t.Errorf("the Cluster has finalizers %v", finalizers)
	}
	mode(s, string(v1alpha1.ModePush))
	s.reporting("s east=Exposed[a.example/v1]")
	mode(s, string(v1alpha1.ModePull))
	s.reporting("s east=ClusterPulls")
	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.eventually("its objects stay recorded", func() bool { return s.reports() == "s east=ClusterPulls" && s.has("east") == wantWidgets })
	mode(s, string(v1alpha1.ModePush))
	s.having("east", "")
	s.eventually("the SharedAPI is gone", func() bool { return s.control.Get(v1alpha1.SharedAPIResource, "", "s") == nil })
}

// TestOthersUntouched: foreign objects beside ours stay, and so does their namespace.
func TestOthersUntouched(t *testing.T) {
	theirs := plain("v1", "Secret", v1alpha1.SystemNamespace, "theirs", nil)
	api := plain("apiregistration.k8s.io/v1", apiServiceKind, "", "v1.b.example", map[string]any{"spec": map[string]any{"group": "b.example", "version": "v1"}})
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t), theirs, api}})
	s.reporting("s east=Exposed[a.example/v1]")
	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.having("east", "")
	east := s.members["east"]
	namespaces, secrets := kinds()[0].gvr, kinds()[1].gvr
	secrets.Resource = "secrets"
	if east.Get(namespaces, "", v1alpha1.SystemNamespace) == nil || east.Get(secrets, v1alpha1.SystemNamespace, "theirs") == nil ||
		east.Get(apiServices, "", "v1.b.example") == nil {
		t.Error("a foreign object was deleted")
	}
}

// TestConflictInUse: an exposed group that is later also defined in the member is not removed from
// its users.
func TestConflictInUse(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	s.members["east"].Put(plain("apiregistration.k8s.io/v1", apiServiceKind, "", "v9.a.example", map[string]any{
		"spec": map[string]any{"group": "a.example", "version": "v9"}}))
	s.reporting("s east=GroupConflict")
	s.having("east", wantWidgets)
	s.members["east"].Delete(apiServices, "", "v9.a.example")
	s.reporting("s east=Exposed[a.example/v1]")
}

// TestMembersOwnCRDs: a CRD that arrives in a member's shared group is reported. The group is not
// withdrawn over it while objects of the member have owners in the group, until an administrator
// allows it.
func TestMembersOwnCRDs(t *testing.T) {
	s := open(t, world(shared("s", []string{"east"}, "a.example")), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	s.reporting("s east=Exposed[a.example/v1]")
	s.dependents = []string{"Deployment shop/web"}
	east := s.members["east"]
	east.Put(crd("widgets", "a.example", "True", "v1"))
	s.reporting("s east=GroupConflict")

	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.reporting("s east=OwnersInUse")
	s.having("east", wantWidgets)
	message := ""
	s.eventually("the reason names the CRD, the dependents and the remedy", func() bool {
		entries, _, _ := unstructured.NestedSlice(s.control.Get(v1alpha1.SharedAPIResource, "", "s").Object, "status", "clusters")
		message = fmt.Sprint(entries)
		return strings.Contains(message, "widgets.a.example") && strings.Contains(message, "Deployment shop/web") &&
			strings.Contains(message, "kubectl annotate cluster east "+v1alpha1.WithdrawAnnotation+"=a.example")
	})

	s.control.Change(v1alpha1.ClusterResource, "", "east", func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{v1alpha1.WithdrawAnnotation: "other.example, a.example"})
	})
	s.having("east", "")
}

// TestHoldReason: when a group must stay in a member.
func TestHoldReason(t *testing.T) {
	for _, tc := range []struct {
		name       string
		crds       []string
		known      bool
		dependents []string
		err        error
		want       string
	}{
		{"no CRDs there", nil, true, nil, nil, ""},
		{"CRDs, and no dependents", []string{"a"}, true, nil, nil, ""},
		{"CRDs and dependents", []string{"a"}, true, []string{"Pod x/y"}, nil, "Pod x/y"},
		{"many dependents", []string{"a"}, true, []string{"1", "2", "3", "4", "5", "6"}, nil, "5 and others"},
		{"unknown CRDs", nil, false, nil, nil, "cannot be read"},
		{"unknown dependents", []string{"a"}, true, nil, errors.New("x"), "cannot be listed"},
	} {
		got := holdReason("east", "g", tc.crds, tc.known, tc.dependents, tc.err)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
