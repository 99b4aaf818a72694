package apply_test

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// check compares the provider's calls, and its world before and after, with the planned changes: each was made once.
func (k *killTest) check(before, after configuration, was, is map[string][]worldResource, done []providerCall) {
	k.t.Helper()
	counts := map[providerCall]int{}
	for _, d := range done {
		counts[d]++
	}
	expect := func(key, call string, m worldResource) {
		k.t.Helper()
		d := providerCall{call, m.ID, m.Version}
		if counts[d] != 1 {
			k.t.Errorf("%s: the call %+v was made %d times, want once", key, d, counts[d])
		}
		delete(counts, d)
	}
	for key, action := range diff(before, after) {
		old, new := was[key], is[key]
		if action == "delete" && len(new) > 0 || action != "delete" && len(new) != 1 || action != "create" && len(old) != 1 {
			k.t.Errorf("%s, action %s: the world had %+v and has %+v", key, action, old, new)
			continue
		}
		switch action {
		case "create":
			expect(key, "create", new[0])
		case "update":
			if new[0].ID != old[0].ID || new[0].Version != old[0].Version+1 {
				k.t.Errorf("%s was not updated exactly once: %+v, %+v", key, old, new)
			}
			expect(key, "update", new[0])
		case "replace":
			expect(key, "delete", old[0])
			expect(key, "create", new[0])
		case "delete":
			expect(key, "delete", old[0])
		}
	}
	for d, n := range counts {
		k.t.Errorf("the unplanned call %+v was made %d times", d, n)
	}
	k.checkWorld(after, is)
}

// checkWorld compares the provider's world with the configuration and with the states.
func (k *killTest) checkWorld(after configuration, is map[string][]worldResource) {
	k.t.Helper()
	for key := range is {
		if _, there := after[key]; !there {
			k.t.Errorf("%s exists, but is not in the configuration: %+v", key, is[key])
		}
	}
	for key, p := range after {
		if len(is[key]) != 1 {
			k.t.Errorf("%s does not exist exactly once: %+v", key, is[key])
			continue
		}
		a := is[key][0].Attributes
		want := map[string]any{}
		switch p.kind {
		case "Network":
			want["cidr"], want["zone"] = p.cidr, p.label
		case "File":
			want["content"] = p.label
		case "Cross":
			refs := []any{}
			for _, name := range p.uses {
				for _, m := range is["Network/"+name] {
					refs = append(refs, m.ID)
				}
			}
			want["references"], want["value"] = refs, p.label
		}
		for name, value := range want {
			if fmt.Sprint(a[name]) != fmt.Sprint(value) {
				k.t.Errorf("%s: %s is %v, want %v", key, name, a[name], value)
			}
		}
	}
	states, err := k.client.Resource(v1alpha1.ResourceStateResource).Namespace("default").List(k.t.Context(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	known := map[string]bool{}
	for i := range states.Items {
		var s v1alpha1.ResourceState
		if err := kruntime.DefaultUnstructuredConverter.FromUnstructured(states.Items[i].Object, &s); err != nil {
			k.t.Fatal(err)
		}
		key := s.Spec.Object.Kind + "/" + s.Spec.Object.Name
		known[key] = true
		var value struct{ ID string }
		if s.Spec.Current != nil {
			if err := json.Unmarshal(s.Spec.Current.Value, &value); err != nil {
				k.t.Error(err)
			}
		}
		if s.Spec.Pending != nil || len(s.Spec.Deposed) > 0 || len(is[key]) != 1 || value.ID != is[key][0].ID {
			k.t.Errorf("the state of %s, which exists as %+v, has ID %q, pending %+v, deposed %d", key, is[key], value.ID, s.Spec.Pending, len(s.Spec.Deposed))
		}
	}
	for key := range after {
		if !known[key] {
			k.t.Errorf("%s has no state", key)
		}
	}
	for _, p := range []object{{kind: "Network"}, {kind: "Cross"}, {kind: "File"}} {
		list, err := k.client.Resource(p.resource()).Namespace("default").List(k.t.Context(), metav1.ListOptions{})
		if err != nil {
			k.t.Fatal(err)
		}
		for i := range list.Items {
			if _, there := after[p.kind+"/"+list.Items[i].GetName()]; !there {
				k.t.Errorf("%s %s still has an object", p.kind, list.Items[i].GetName())
			}
		}
	}
}
