package coordination

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func TestTokenStringRoundTrip(t *testing.T) {
	token := Token{"00000000-0000-0000-0000-000000000001", 7, "1042"}
	obj := &metav1.ObjectMeta{}
	Fence(obj, token)
	if got, err := ParseToken(obj.Annotations[FenceAnnotation]); err != nil || got != token {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "a/1", "a/1/2/3", "a/-1/2", "a/x/2", "/1/2", "a/1/", "a/2147483648/2"} {
		if token, err := ParseToken(s); err == nil {
			t.Errorf("%q became %+v", s, token)
		}
	}
}

func TestInvalidRules(t *testing.T) {
	valid := func() Rules {
		return Rules{
			Lease:     types.NamespacedName{Namespace: "ops", Name: "web"},
			Resources: []schema.GroupResource{{Group: "example.org", Resource: "apps"}, {Group: "example.org", Resource: "apps/status"}},
			Users:     []string{"ops"},
		}
	}
	if err := valid().validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Rules){
		"name of the lease": func(r *Rules) { r.Lease.Name = "" },
		"no resources":      func(r *Rules) { r.Resources = nil },
		"no writers":        func(r *Rules) { r.Users = nil },
		"without a name":    func(r *Rules) { r.ServiceAccounts = []types.NamespacedName{{Namespace: "ops"}} },
		"wildcards":         func(r *Rules) { r.Resources[0].Resource = "*" },
		"only status":       func(r *Rules) { r.Resources[0].Resource = "apps/scale" },
		"dead leader":       func(r *Rules) { r.Resources[0] = LeaseResource.GroupResource() },
	} {
		r := valid()
		change(&r)
		if err := r.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
}

// TestFenceMatchesOperations checks that a status, which is only updated, has its own rule.
func TestFenceMatchesOperations(t *testing.T) {
	r := Rules{Resources: []schema.GroupResource{
		{Group: "b", Resource: "y/status"}, {Group: "b", Resource: "y"}, {Group: "a", Resource: "x"}, {Group: "b", Resource: "z"},
	}}
	var got []string
	for _, m := range r.matches() {
		got = append(got, m.APIGroups[0]+":"+strings.Join(m.Resources, ",")+":"+string(m.Operations[0]))
	}
	if want := "a:x:CREATE b:y,z:CREATE b:y/status:UPDATE"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}
