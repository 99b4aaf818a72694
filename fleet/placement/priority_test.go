package placement

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// TestPriority: of policies of one kind the highest priority decides, then the more specific one, then the older
// one.
func TestPriority(t *testing.T) {
	policy := func(name string, minute int, priority int32, selector v1alpha1.ObjectSelector) *v1alpha1.Placement {
		return &v1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(start.Add(time.Duration(minute) * time.Minute))},
			Spec: v1alpha1.PlacementSpec{Selector: selector, Priority: priority, Mode: v1alpha1.ModeSingle}}
	}
	target := PolicyTarget{GroupKind: schema.GroupKind{Group: "apps", Kind: "Deployment"}, Namespace: "shop", Name: "web"}
	named, all := v1alpha1.ObjectSelector{Names: []string{"web"}}, v1alpha1.ObjectSelector{}
	for name, tt := range map[string]struct {
		policies []*v1alpha1.Placement
		want     string
	}{
		"the higher one":             {[]*v1alpha1.Placement{policy("named", 0, 0, named), policy("all", 1, 10, all)}, "all"},
		"a negative one":             {[]*v1alpha1.Placement{policy("named", 0, -1, named), policy("all", 1, 0, all)}, "all"},
		"equal: the specific one":    {[]*v1alpha1.Placement{policy("all", 0, 5, all), policy("named", 1, 5, named)}, "named"},
		"equal otherwise: the older": {[]*v1alpha1.Placement{policy("newer", 1, 5, named), policy("older", 0, 5, named)}, "older"},
	} {
		p := NewPolicies(tt.policies, []*v1alpha1.ClusterPlacement{{ObjectMeta: metav1.ObjectMeta{Name: "highest"},
			Spec: v1alpha1.ClusterPlacementSpec{PlacementSpec: v1alpha1.PlacementSpec{Priority: 100, Mode: v1alpha1.ModeSingle}}}}, nil)
		choice := p.For(target)
		if choice.Reference.Name != tt.want {
			t.Errorf("%s: %s decides: %s", name, choice.Reference.Name, choice.Reference.Why)
		}
		passed := p.Overruled(target)
		if len(passed) != 2 {
			t.Errorf("%s: %v passed", name, passed)
		}
		for _, o := range passed {
			if o.Reference.Name == "named" && !strings.Contains(o.Why, "has the higher priority") {
				t.Errorf("%s: %s passed because %s", name, o.Reference.Name, o.Why)
			}
		}
	}
}
