package expose

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/aggregate"
	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// grants returns the collectors' permissions and subjects in readable form.
func (s *fixture) grants() string {
	role, binding := s.control.Get(roleResource, "", v1alpha1.CollectorsGroup), s.control.Get(bindingResource, "", v1alpha1.CollectorsGroup)
	if role == nil || binding == nil {
		return "no role or no binding"
	}
	out := ""
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	for _, rule := range rules {
		groups, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "apiGroups")
		verbs, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "verbs")
		out += strings.Join(verbs, ",") + " " + strings.Join(groups, ",") + " "
	}
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	for _, subject := range subjects {
		out += "to " + subject.(map[string]any)["name"].(string)
	}
	return out
}

func TestCollectorsMayReadWhatIsExposed(t *testing.T) {
	s := open(t, world(), map[string][]*unstructured.Unstructured{"east": {authority(t)}})
	granted := func(groups string) {
		t.Helper()
		want := "get,list,watch " + groups + " to " + aggregate.GroupCollectors
		s.eventually("collectors may "+want, func() bool { return s.grants() == want })
	}
	s.control.Put(shared("s", []string{"east"}, "a.example"))
	granted("a.example")
	s.control.Put(shared("t", []string{"east"}, "c.example", "b.example", "a.example"))
	granted("a.example,b.example,c.example")

	// Additional permissions are removed.
	s.control.Change(roleResource, "", v1alpha1.CollectorsGroup, func(u *unstructured.Unstructured) {
		u.Object["rules"] = append(u.Object["rules"].([]any), map[string]any{
			"apiGroups": []any{"a.example"}, "resources": []any{"*"}, "verbs": []any{"delete"}})
	})
	granted("a.example,b.example,c.example")
	s.control.Delete(bindingResource, "", v1alpha1.CollectorsGroup)
	granted("a.example,b.example,c.example")

	s.control.Delete(v1alpha1.SharedAPIResource, "", "t")
	s.control.Delete(v1alpha1.SharedAPIResource, "", "s")
	s.eventually("no permission is left", func() bool { return s.grants() == "to "+aggregate.GroupCollectors })

	// A user can opt out with an annotation.
	s.control.Change(bindingResource, "", v1alpha1.CollectorsGroup, func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{autoupdate: "false"})
		delete(u.Object, "subjects")
	})
	s.control.Put(shared("u", []string{"east"}, "d.example"))
	s.eventually("the binding is preserved", func() bool { return s.grants() == "get,list,watch d.example " })
}
