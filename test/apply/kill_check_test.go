package apply_test

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// check holds what was done between two looks at the provider's world to what was to be done, once each.
func (k *killing) check(before, after town, was, is map[string][]made, done []deed) {
	k.t.Helper()
	counts := map[deed]int{}
	for _, d := range done {
		counts[d]++
	}
	expect := func(key, call string, m made) {
		k.t.Helper()
		d := deed{call, m.ID, m.Version}
		if counts[d] != 1 {
			k.t.Errorf("%s: %+v was done %d times", key, d, counts[d])
		}
		delete(counts, d)
	}
	for key, action := range diff(before, after) {
		old, new := was[key], is[key]
		if action == "delete" && len(new) > 0 || action != "delete" && len(new) != 1 || action != "create" && len(old) != 1 {
			k.t.Errorf("%s, to %s: there were %+v, and are %+v", key, action, old, new)
			continue
		}
		switch action {
		case "create":
			expect(key, "create", new[0])
		case "update":
			if new[0].ID != old[0].ID || new[0].Version != old[0].Version+1 {
				k.t.Errorf("%s was to be updated once: %+v, %+v", key, old, new)
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
		k.t.Errorf("nobody planned %+v, which was done %d times", d, n)
	}
	k.whole(after, is)
}

// whole holds what is there to what is written, and to what Atoll knows of it.
func (k *killing) whole(after town, is map[string][]made) {
	k.t.Helper()
	for key := range is {
		if _, there := after[key]; !there {
			k.t.Errorf("%s is there, and should not be: %+v", key, is[key])
		}
	}
	for key, p := range after {
		if len(is[key]) != 1 {
			k.t.Errorf("%s is there so often: %+v", key, is[key])
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
				k.t.Errorf("%s: %s is %v, and should be %v", key, name, a[name], value)
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
			k.t.Errorf("the state of %s, of which there is %+v: it knows %q, pending %+v, deposed %d", key, is[key], value.ID, s.Spec.Pending, len(s.Spec.Deposed))
		}
	}
	for key := range after {
		if !known[key] {
			k.t.Errorf("%s has no state", key)
		}
	}
	for _, p := range []plot{{kind: "Network"}, {kind: "Cross"}, {kind: "File"}} {
		list, err := k.client.Resource(p.resource()).Namespace("default").List(k.t.Context(), metav1.ListOptions{})
		if err != nil {
			k.t.Fatal(err)
		}
		for i := range list.Items {
			if _, there := after[p.kind+"/"+list.Items[i].GetName()]; !there {
				k.t.Errorf("%s %s is still written", p.kind, list.Items[i].GetName())
			}
		}
	}
}
