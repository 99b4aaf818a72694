package v1alpha1

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNamesOfTypes(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	for got, want := range map[string]string{
		ImportName(widgets, "east"): "widgets.east.v1.example.com",
		ImportName(pods, "east"):    "pods.east.v1.core",
		NegotiatedName(widgets):     "widgets.v1.example.com",
		NegotiatedName(pods):        "pods.v1.core",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	// All names are valid and unique.
	seen := map[string]bool{}
	for _, cluster := range []string{"a", "a.v1", "a.v1.b", "v1", strings.Repeat("x", 250)} {
		for _, r := range []schema.GroupVersionResource{widgets, pods, {Group: "v1.b.c", Version: "v1", Resource: "a"}, {Group: "b.c", Version: "v1", Resource: "a"}} {
			name := ImportName(r, cluster)
			if msgs := validation.IsDNS1123Subdomain(name); len(msgs) > 0 {
				t.Errorf("%s of %s: %q is not a valid name: %v", r, cluster, name, msgs)
			}
			if seen[name] {
				t.Errorf("%s of %s: the name %s is taken", r, cluster, name)
			}
			seen[name] = true
		}
	}
}

func TestPolicyFor(t *testing.T) {
	policy := func(name string, age int, groups ...string) *TypePolicy {
		return &TypePolicy{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(1000-age), 0))},
			Spec: TypePolicySpec{Groups: groups}}
	}
	all := []*TypePolicy{
		policy("all", 1, "*"), policy("com", 2, "*.com", "core"), policy("example", 3, "*.example.com"),
		policy("exact", 4, "a.example.com"), policy("younger", 1, "b.example.com"), policy("older", 9, "b.example.com", "apps"),
	}
	tests := []struct {
		group, want string
		inFull      bool
	}{
		{"other.org", "all", false},
		{"other.com", "com", false},
		{"x.example.com", "example", false},
		{"deep.x.example.com", "example", false},
		{"example.com", "com", false}, // *.example.com matches only groups below example.com
		{"a.example.com", "exact", true},
		{"b.example.com", "older", true},
		{"", "com", true},
		{"apps", "older", true},
		{"batch", "all", false},
	}
	for _, tt := range tests {
		got, inFull := PolicyFor(tt.group, all)
		if got == nil || got.Name != tt.want || inFull != tt.inFull {
			t.Errorf("%q: %v, in full %v; want %s, %v", tt.group, got, inFull, tt.want, tt.inFull)
		}
	}
	if got, _ := PolicyFor("other.org", all[1:]); got != nil {
		t.Errorf("a group without a policy gets policy %s", got.Name)
	}
}

func TestStrategies(t *testing.T) {
	for s, want := range map[SchemaUpdateStrategy][2]bool{ // unpublished, published
		UpdateNever: {false, false}, UpdateUnpublished: {true, false}, UpdatePublished: {true, true}, "": {true, false},
	} {
		if got := [2]bool{s.Allows(false), s.Allows(true)}; got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}
